"""Timelines in the formats of other programs; docs/export.md."""
