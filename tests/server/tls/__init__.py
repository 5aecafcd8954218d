"""TLS: usable certificates, their replacement at runtime, and clients that are admitted."""
