"""Work before the first step: sanity check of the task, setup, and resume."""
