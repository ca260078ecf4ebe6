"""Replays of traces on simulated instances: the execution modes, their results and figures."""
