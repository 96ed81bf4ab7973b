"""What people call: to train, to go on, to predict, to check, to cross-validate, and a run to look at.

`actions.fit`, `actions.resume` and `actions.predict` return a `run.Run`, which `run.open_run` opens later.
"""
