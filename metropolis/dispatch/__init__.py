"""Dispatchers: the instance of each request, in simulation and in front of real engines."""
