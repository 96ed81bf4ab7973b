"""Parts of a training step and an evaluation: train state, schedule, seeds, evaluation, and the sanity check before
step 1.

Others use `state.TrainState` with `state.Execution`, `evaluation`, `schedule` and `sanity_check`.
"""
