"""Room ingester/dml."""
