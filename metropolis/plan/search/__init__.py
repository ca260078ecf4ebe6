"""Searches for schedules."""
