"""Clients that repeat batches after lost answers, crashes of either side, lost disks, and moves."""
