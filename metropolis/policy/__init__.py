"""Policies: which of the waiting requests goes first, in virtual time and before real engines."""
