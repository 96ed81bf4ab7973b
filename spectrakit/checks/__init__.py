"""What is known before the first step: how a loss is checked, an error explained, a check taken back, and what a run
will take of time, memory and money.

Others use `diagnosis.explain`, `undo.undone`, `loss_checks.watch_shapes` and `results.ContractResult`.
"""
