"""What a notebook hands over to the processes that train: the request, the task by value, the job in its folder.

Others use `request.RunRequest`, `job` with `BUILT_IN`, `job_kind.KINDS` and `consent`.
"""
