"""Start of training processes: request, job, launcher, supervisor, workers, consent. `pickling` carries the task."""
