"""Training in one process: the loop on one screen, and what happens between two of its steps.

Others use `loop.train_run` with `state.Execution`, `prediction.predict_run`,
`prediction.trained_model` and `lr_range_test.range_run`.
"""
