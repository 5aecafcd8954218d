"""Room ingester/server."""
