"""The command line: each group of commands is one module, and `main.GROUPS` names it.

Entrance: `main.main`. Shared parts: `parsing` and `output`.
"""
