"""Hyperparameter search: space, study, trials, study page."""
