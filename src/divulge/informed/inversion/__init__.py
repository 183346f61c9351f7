"""Training inverted: the record for which training ends at the released weights."""
