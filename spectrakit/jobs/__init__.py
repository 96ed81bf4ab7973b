"""What a training process does besides training: predict, test a range of learning rates, try a task's contract.

Others use `prediction.predict_run`, `prediction.trained_model`, `lr_range_test.range_run` and
`contract_check.check_run`.
"""
