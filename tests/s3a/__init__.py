"""Spark's S3A connector reads our tables; its jars are fetched from Maven."""
