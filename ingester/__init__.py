"""A durable streaming ingester: Arrow batches in over Flight, sorted Parquet out to a store."""

__version__ = "0.1.0"
