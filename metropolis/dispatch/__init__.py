"""Dispatchers: which instance takes a request, in virtual time and before real engines."""
