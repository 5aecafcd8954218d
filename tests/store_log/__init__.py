"""The log in the store: shipping, fencing, reading and deletion of log objects."""
