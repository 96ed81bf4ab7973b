"""The built-in tasks, and the spectra that they learn from (extra `demo`).

`builtin` has the tasks, `spectra` the data. `launch.job.BUILT_IN` gives each task its name: one line a task.
"""
