"""Starts jobs in processes of their own, watches them, and starts them again after a fault.

Others use `launcher.launch`, `job.Job`, the kinds of `job_kind` and `request.new_request`.
"""
