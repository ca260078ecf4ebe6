"""metropolis.llm.backends."""
