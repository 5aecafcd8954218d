"""Clients that send again: after lost answers, crashes of either side, lost disks, and moves."""
