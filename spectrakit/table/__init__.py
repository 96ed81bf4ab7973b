"""The built-in task for a competition's tables: what is asked, the columns, the net (`spectrakit train table`).

Others use `table.Table`, `files` and `question`.
"""
