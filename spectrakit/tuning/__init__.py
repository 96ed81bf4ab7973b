"""Cross-validation, blending, and the learning-rate finder. `search` holds hyperparameter search."""
