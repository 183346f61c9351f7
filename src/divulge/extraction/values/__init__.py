"""The machinery of extraction from values."""
