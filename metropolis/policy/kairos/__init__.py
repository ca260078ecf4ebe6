"""Kairos: requests ordered by the learned remaining latencies of their functions."""
