"""Plans of the GPUs for a society whose calls ask several models."""
