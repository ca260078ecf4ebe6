"""The interface for authors of worlds: worlds, agents, views and transactions."""
