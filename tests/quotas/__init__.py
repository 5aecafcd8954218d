"""What a namespace may take of a daemon: the rule by itself, and two tenants of a real one."""
