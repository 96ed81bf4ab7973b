"""What one optimizer step and one evaluation work with: train state, schedule, seeds, mixtures, the trial before step 1.

Others use `state.TrainState` with `state.Execution`, `evaluation`, `schedule` and `trial`.
"""
