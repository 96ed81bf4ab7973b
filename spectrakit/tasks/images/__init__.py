"""Built-in task for pictures: files, pixels, network, data."""
