"""Optimistic execution in one process: agents run ahead on predictions."""
