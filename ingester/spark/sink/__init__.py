"""Room ingester/spark/sink."""
