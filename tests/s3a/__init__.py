"""Spark's own S3A connector on our tables; its jars are fetched by their Maven coordinates."""
