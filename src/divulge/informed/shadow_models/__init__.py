"""Shadow models, and reconstructors learned from them."""
