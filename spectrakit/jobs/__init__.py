"""Jobs of a training process besides the loop: prediction, ensembles, serving, the learning rate range test, the
contract check and the measurement of steps.

Others use `prediction.predict_run`, `prediction.trained_model`, `lr_range_test.range_run` and
`contract_check.check_run`.
"""
