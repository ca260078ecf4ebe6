"""Bundled worlds; they use only the package's public interface."""
