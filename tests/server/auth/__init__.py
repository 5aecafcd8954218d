"""Tokens, rights and the audit log: pure rules, and one daemon that asks for tokens."""
