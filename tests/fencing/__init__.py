"""Two processes that believe they are one daemon: the older may commit nothing more."""
