"""An LLM engine in which fine-tuned variants of one model start from each other's caches."""
