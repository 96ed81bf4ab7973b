"""Data that a notebook passes to training processes: the request, the pickled task, and the job in its folder.

Others use `request.RunRequest`, `job` with `BUILT_IN`, `job_kind.KINDS` and `consent`.
"""
