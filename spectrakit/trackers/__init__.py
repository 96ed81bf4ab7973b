"""A run's numbers elsewhere: TensorBoard, W&B, MLflow, trackio, aim.

Others use `registry.check_trackers`, `registry.start_trackers`, `tracker.Trackers` and `wandb.key_in_environment`. A
tracker is one file and one line in `registry.TRACKERS`.
"""
