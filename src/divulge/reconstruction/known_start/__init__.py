"""Training inputs out of the difference of two checkpoints."""
