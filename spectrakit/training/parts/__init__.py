"""One concern of a training run in each file, with its state: a `steps.part.Part`, and a line in `parts_table`."""
