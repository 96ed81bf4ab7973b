"""Checks of a task and diagnosis of its errors."""
