"""Span recovery from gradients, step by step: differences, incremental basis, null-space moves, rank decision."""
