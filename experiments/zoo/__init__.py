"""Models that other people made: files inside public wheels, and models of other libraries."""
