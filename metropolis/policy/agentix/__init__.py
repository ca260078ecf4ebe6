"""Agentix: calls ordered by the service that their program has attained (§4.2)."""
