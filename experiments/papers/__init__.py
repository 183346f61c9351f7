"""The papers' experiments, one module each, run by ``divulge reproduce NAME``."""
