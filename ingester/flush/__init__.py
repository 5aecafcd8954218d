"""Room ingester/flush."""
