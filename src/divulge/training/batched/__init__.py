"""Many models trained at once on sets that differ in one row."""
