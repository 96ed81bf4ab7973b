"""The live cell of a notebook: frame, curves, table, buttons."""
