"""Two processes that act as the same daemon: the older one can no longer commit."""
