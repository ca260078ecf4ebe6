"""Speculation: executions that run ahead of the controller, and the check of what they read."""
