"""metropolis.rules."""
