"""The machinery of copies that are learned by training."""
