"""metropolis.bench."""
