"""Room ingester/observability."""
