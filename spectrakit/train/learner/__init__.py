"""Objects of a training run: seeds, model, optimizer."""
