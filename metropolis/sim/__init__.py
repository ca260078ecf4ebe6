"""metropolis.sim."""
