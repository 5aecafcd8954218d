"""Room ingester/daemon."""
