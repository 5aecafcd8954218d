"""Room persist/predicate."""
