"""The built-in tasks, and the spectra that they learn from (extra `demo`).

Each task is a file: `coffee`, `fermentation`, `digits`; `spectra` has the data, `demo` is what `make demo` runs.
`handover.job.BUILT_IN` gives each task its name: one line a task.
"""
