"""Span recovery from labels, step by step: search for boundary points, normals by bisection, verification."""
