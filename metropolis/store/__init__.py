"""The store: a run's graph, world and minds, accessible to many processes."""
