"""Simulated LLM instances: their specification (`reference`) and hardware profiles (`profiles`)."""
