"""Agentix: calls ordered by the attained service of their program (§4.2)."""
