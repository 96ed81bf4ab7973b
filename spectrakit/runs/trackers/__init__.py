"""Experiment trackers: TensorBoard, Weights & Biases, MLflow, trackio, Aim. One file per tracker."""
