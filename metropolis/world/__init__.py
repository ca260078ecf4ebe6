"""metropolis.world."""
