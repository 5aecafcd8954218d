"""The commands of the runbook, run as written on real daemons."""
