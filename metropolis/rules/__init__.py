"""Metrics and the rules of causality."""
