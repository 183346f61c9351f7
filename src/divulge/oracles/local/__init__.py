"""Models in this process behind the counter: modules, estimators and functions."""
