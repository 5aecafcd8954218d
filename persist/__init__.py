"""From a frozen buffer to a visible Parquet file: jobs, object store, manifest."""
