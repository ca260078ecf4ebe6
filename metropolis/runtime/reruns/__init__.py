"""Repeated steps of a recorded run: its verification, and branches that begin in it."""
