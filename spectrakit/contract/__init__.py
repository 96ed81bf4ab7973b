"""What a task has to give: its methods, the form of its loss, and the optimizer where it brings none of its own.

Others use `task.Task` and `task.check_task`, `loss.check_loss` and `optimizer.build_optimizer`.
"""
