"""Command line. `main.GROUPS` maps each command to its file in `commands`."""
