"""Tokens, permissions and the audit log: pure rules, and one daemon that requires tokens."""
