"""Checkpoints: verified store, background writer, mirror folder."""
