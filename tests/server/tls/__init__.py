"""Certificates: what can be served with, what is taken up, and who is let in by them."""
