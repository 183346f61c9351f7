"""Haim et al. 2022 as printed, and the search for its hyper-parameters."""
