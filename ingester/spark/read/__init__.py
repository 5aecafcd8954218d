"""Room ingester/spark/read."""
