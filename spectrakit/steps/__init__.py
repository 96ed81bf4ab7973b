"""What one optimizer step and one evaluation work with: train state, schedule, seeds, mixtures, and the sanity check
that comes before step 1.

Others use `state.TrainState` with `state.Execution`, `evaluation`, `schedule` and `sanity_check`.
"""
