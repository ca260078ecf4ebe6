"""An OpenAI-compatible HTTP server in front of engines: policies order, dispatchers place."""
