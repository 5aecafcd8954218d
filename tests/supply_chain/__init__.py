"""What is locked, held against known vulnerabilities; the list of it; the container's base."""
