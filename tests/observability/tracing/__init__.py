"""Traces, with a real OTLP receiver, and the choice of traced calls."""
