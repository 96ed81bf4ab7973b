"""Training: the loop, its parts, evaluation, schedule, setup and resume."""
