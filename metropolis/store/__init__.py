"""The store: a run's graph, world and minds, where many processes can work on them."""
