"""Path finding in functions that are constant on boxes: trees, and small sums of trees."""
