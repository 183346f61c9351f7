"""Models behind an HTTP endpoint: batching, transport, journal and protocols."""
