"""Plans of which models run when, and on how many GPUs (SamuLLM)."""
