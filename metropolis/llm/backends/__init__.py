"""Backends: language models behind one interface."""
