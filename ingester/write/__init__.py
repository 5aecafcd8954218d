"""Room ingester/write."""
