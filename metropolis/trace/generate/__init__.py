"""Generated traces: movement in the bundled town, calls for any movement, towns side by side."""
