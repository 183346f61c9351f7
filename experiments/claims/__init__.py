"""Whether what an audit claims is true: real models, and an independent computation for each claim."""
