"""Copies of whole tables, from the first batch until the copy replaces the table."""
