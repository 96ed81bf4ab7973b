"""What a notebook's cell shows of a run from start to end: header, curves, table, buttons; and dashboard.html.

Used from outside: `live.make_view`, `live.prints_log` and `live.watch`.
"""
