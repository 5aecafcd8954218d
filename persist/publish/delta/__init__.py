"""Delta metadata of a table."""
