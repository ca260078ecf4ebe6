"""metropolis.trace."""
