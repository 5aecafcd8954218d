"""Room persist/jobs."""
