"""How long a run may take: the time limit, what is held back for the end, and when to stop.

Others use `budget.time_limit`, `budget.make_budget` and `budget.check_time`; `watchdog.Watchdog` guards any loop.
"""
