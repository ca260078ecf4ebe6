"""Kairos: the order of requests from what is learned of their functions' remaining latencies."""
