"""Our measurements, one module each, run by ``python -m experiments NAME``."""
