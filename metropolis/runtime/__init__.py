"""metropolis.runtime."""
