"""metropolis runs societies of LLM agents out of order, with a history equal to lockstep's."""
