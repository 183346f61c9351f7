"""The missing record of a generalised linear model: equations and their solutions."""
