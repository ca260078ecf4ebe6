"""Execution of clusters."""
