"""The wall clock of a process that has this folder on its path: `time.time` is off by the seconds that the file
TINY_CLOCK holds now.
"""

import os
import time

real = time.time


def shifted() -> float:
    try:
        with open(os.environ["TINY_CLOCK"]) as file:
            return real() + float(file.read() or 0)
    except (KeyError, OSError, ValueError):
        return real()


time.time = shifted
