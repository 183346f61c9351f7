"""The machinery of extraction from gradients."""
