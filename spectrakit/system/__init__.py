"""Facts about the machine and basic tools: hardware, platforms, files, signals, secrets, errors."""
