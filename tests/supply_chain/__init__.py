"""The locked packages checked for known vulnerabilities, their list, and the container's base."""
