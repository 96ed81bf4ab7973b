"""Folders that train elsewhere: Modal, SLURM, Colab."""
