"""Kernels and data sets for Kaggle: written, checked here, and pushed by Kaggle's own client.

For others: `init.init_kernel`, `check.check_kernel`, `client.push_kernel`, `metadata.Finding`.
"""
