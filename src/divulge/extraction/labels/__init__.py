"""The machinery of ``from_labels``: slices of the decision boundary, its facets, and the network behind them."""
