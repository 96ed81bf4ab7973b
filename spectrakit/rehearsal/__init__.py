"""A kernel tried at home before Kaggle runs it: data cut small, then a hidden test set, in a session without network.

Others use `rehearse.rehearse`, which is `spectrakit kaggle check --run`.
"""
