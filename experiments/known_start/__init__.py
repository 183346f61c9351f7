"""Targets of the known_start benchmark."""
