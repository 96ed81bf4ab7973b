"""Answers to a competition's evaluation API: a model in a process of its own, in time, and a standing answer else.

Others use `inference_server.serve`, which is `sk.serve`, and `attached.attached_runs`, the runs among the inputs.
"""
