"""Parts of the training loop, one concern per file, with its state. `train.parts_table` gives their order."""
