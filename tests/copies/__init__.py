"""Copies of whole tables, from their first batch until they are the table."""
