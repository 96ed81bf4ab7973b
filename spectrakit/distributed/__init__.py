"""Ranks: topology, devices, precision, collectives, FSDP, hang detection."""
