"""Training in one process: the loop on one screen, and what happens around its steps.

Others use `loop.train_run` and `setup`.
"""
