"""Room ingester/origins."""
