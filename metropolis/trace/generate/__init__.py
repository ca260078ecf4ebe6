"""Generated traces: movement in a town of our own, calls on any movement, towns side by side."""
