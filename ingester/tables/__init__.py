"""Room ingester/tables."""
