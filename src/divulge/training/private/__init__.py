"""Training with differential privacy: the trainer, clipped gradients, and accounting."""
