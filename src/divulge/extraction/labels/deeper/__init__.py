"""Several hidden layers: the lowest as for one layer, the next in the outputs of those below."""
