"""Bundled worlds."""
