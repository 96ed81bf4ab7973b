"""Built-in task for tables: files, question, columns, network, data."""
