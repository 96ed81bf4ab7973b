"""What each training process does: the loop in one function, and what happens around its steps.

Others use `loop.train_run` and `setup`.
"""
