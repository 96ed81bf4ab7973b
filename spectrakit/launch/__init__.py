"""Starts jobs in processes of their own, watches them, and starts them again after a fault.

Others use `launcher.launch`; what is launched is made in `handover`.
"""
