"""Worlds that come with the package; they use only its public interface."""
