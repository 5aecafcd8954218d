"""Room persist/exports."""
