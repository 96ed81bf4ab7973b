"""A stand-in for what lies in the data of a competition with an evaluation API, written for this simulator.

The names are Kaggle's: `InferenceServer`, `Gateway`, `run_local_gateway`, the rerun that is asked for at import.
Requests go through a socket, as JSON with CSV in it, one at a time, each with a limit.
"""
