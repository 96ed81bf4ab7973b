"""Inference servers for competitions with an evaluation API."""
