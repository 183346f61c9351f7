"""The algorithms of Milli et al. 2019 and Chen et al. 2021 as printed."""
