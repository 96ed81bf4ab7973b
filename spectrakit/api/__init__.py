"""Functions that a notebook calls: fit, resume, predict, check, preflight; and `Run`, the folder of a run."""
