"""What a task is told before its first step: how a loss is checked, an error explained, and a trial taken back.

Others use `diagnosis.explain`, `undo.undone`, `loss_checks.watch_shapes` and `results.ContractResult`.
"""
