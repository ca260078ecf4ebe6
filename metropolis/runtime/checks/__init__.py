"""`check_world`: runs of a world under random schedules, and the causes of their differences."""
