"""Training in one process: the task, the loop on one screen, and what happens between two of its steps.

Others use `task.Task` and `task.check_task`, `loop.train_run` with `state.Execution`, `prediction.predict_run`,
`prediction.trained_model` and `lr_range_test.range_run`.
"""
