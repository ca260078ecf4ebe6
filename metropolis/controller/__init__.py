"""metropolis.controller."""
