"""Curves and text of a run: run state, figures, SVG renderer, terminal. `cell` draws the live cell."""
