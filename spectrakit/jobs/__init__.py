"""What a training process does besides the loop: predict, alone or with several runs, answer batches, test a range of
learning rates, try a task's contract, measure some steps.

Others use `prediction.predict_run`, `prediction.trained_model`, `lr_range_test.range_run` and
`contract_check.check_run`.
"""
