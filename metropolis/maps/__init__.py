"""Grid maps and our own town."""
