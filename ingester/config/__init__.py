"""Room ingester/config."""
