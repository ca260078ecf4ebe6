"""Settings of all tests."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None)  # how long an example takes is no failure
settings.load_profile("untimed")
