"""Checks before the first step: loss checks, explanations of errors, undo of the sanity check, and forecasts of memory,
time and cost.

Others use `diagnosis.explain`, `undo.undone`, `loss_checks.watch_shapes` and `results.ContractResult`.
"""
