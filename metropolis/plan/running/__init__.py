"""The running phase: an application on real engines (SamuLLM §4.3)."""
