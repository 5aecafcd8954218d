"""Room ingester/spark/source."""
