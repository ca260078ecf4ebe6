"""One scheduler for real engines and for simulated ones."""
