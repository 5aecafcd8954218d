"""The runbook acted out: its commands, as they stand there, on real daemons."""
