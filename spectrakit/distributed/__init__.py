"""Ranks, devices and collectives: how many processes train, how they agree, and which of them is stuck.

Others use `context` (RunContext, create_run_context), `topology` (plan_processes, rank_of), `heartbeat`
(Heartbeat, HangDetector, STOP, stop_file) and `fsdp` (is_sharded, whole).
"""
