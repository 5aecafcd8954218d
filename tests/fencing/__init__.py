"""Two processes that believe they are the same daemon: the older one can commit nothing more."""
