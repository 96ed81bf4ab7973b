"""What people see of a run, drawn from its event log: plots, the live view in a notebook, lines in a terminal.

Used from outside: `live.make_view` and `live.watch`, `plots.plot_curves`, `text.TextView`, `run_state.RunState`.
"""
