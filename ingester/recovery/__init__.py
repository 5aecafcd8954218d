"""Room ingester/recovery."""
