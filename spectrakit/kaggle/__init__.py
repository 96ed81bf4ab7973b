"""Kaggle kernels: check, create, push, and submit. `offline` holds wheelhouses, `rehearsal` simulated sessions."""
