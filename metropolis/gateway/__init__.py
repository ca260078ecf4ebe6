"""An OpenAI-compatible HTTP server before engines: policies order, dispatchers place."""
