"""The folder of a run: how it is made, the events in it, how it is read, and from where a run goes on.

Others read a run by `history.read_history` alone and write by `events.EventLog`; `run_dir` makes and finds folders,
`resume_source.plan_resume` says where to go on, `outputs.seal_output` lists what a session leaves.
"""
