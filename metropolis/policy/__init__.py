"""Policies: the order of waiting requests, in simulation and in front of real engines."""
