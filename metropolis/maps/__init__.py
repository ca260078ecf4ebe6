"""Grid maps and the bundled town."""
