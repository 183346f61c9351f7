"""Models in this process as oracles: modules, estimators and functions."""
