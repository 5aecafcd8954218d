"""Traces: with a real receiver of OTLP, and what is decided before anything is sent."""
