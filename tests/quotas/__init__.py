"""Quotas of namespaces: the rules alone, and two tenants of a real daemon."""
