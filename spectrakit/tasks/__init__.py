"""Built-in tasks on small real data sets. `table` learns any table of a competition."""
