"""A training table from the counts of a random forest, by constraint programming."""
