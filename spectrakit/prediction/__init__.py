"""Predictions and submissions: prediction files, ensembles, out-of-fold predictions, submission checks."""
