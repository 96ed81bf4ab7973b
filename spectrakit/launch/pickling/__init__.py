"""State of the notebook for training processes: the task by value, changed modules, torch settings."""
