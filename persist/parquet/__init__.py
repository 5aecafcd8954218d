"""Room persist/parquet."""
