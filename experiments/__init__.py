"""What it costs, against peers and the papers' own recipes, in one run."""
