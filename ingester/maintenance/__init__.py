"""Room ingester/maintenance."""
