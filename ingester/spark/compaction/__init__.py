"""Room ingester/spark/compaction."""
