"""What people see of a run, drawn from its event log: figures, tiles and panels, plots, lines in a terminal.

Used from outside: `plots.plot_curves`, `text.TextView`, `run_state.RunState`, `svg.draw_panel`.
"""
