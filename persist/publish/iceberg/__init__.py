"""Iceberg metadata of a table."""
