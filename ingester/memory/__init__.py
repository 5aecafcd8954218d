"""Room ingester/memory."""
