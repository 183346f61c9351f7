"""Two hidden layers: the first as for one layer, the second in the features of the first."""
