"""The worker process: it plans and computes one query at a time, and reads what it is given."""
