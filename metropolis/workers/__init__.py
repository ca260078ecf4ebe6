"""Where clusters are run."""
