"""Stress for what divulge promises: hostile servers, malformed requests, killed runs, damaged journals, load and sizes.

Each module has one function that runs its cases and returns the counts; ``python -m experiments reliability`` runs them
all, and small versions of them are tests.
"""
