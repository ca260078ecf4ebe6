"""Traces: schema, files, importers, generators and mining."""
