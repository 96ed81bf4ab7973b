"""A task that prints secrets past Python's streams: test_log_relay.py looks for them on the disk."""

import base64
import faulthandler
import os
import signal
import subprocess
from pathlib import Path

from helpers import wait_for
from tasks import Line

KEY, PASSWORD, VALUE = "hf_" + "aB3" * 12, "Tr0ub4dor", "sesame-4711-below"
FLOOD = 40_000  # lines, four times as much as a pipe holds


class Talking(Line):
    "Its third loss prints secrets past Python's streams, and does what TINY_ACT says."

    def during(self, number):
        if number != 3:
            return
        rank = os.environ.get("RANK", "0")
        print("from Python:", KEY)
        os.write(1, b"in two pieces: " + KEY[:9].encode())
        os.write(1, KEY[9:].encode() + b"\n")
        subprocess.run(["sh", "-c", f"echo password={PASSWORD}; echo {VALUE} >&2"], check=True)
        for line in ("token: |", f"  {PASSWORD}", "in base64: " + base64.b64encode(KEY.encode()).decode()):
            os.write(2, line.encode() + b"\n")
        Path(f"printed-{rank}").touch()
        act = os.environ.get("TINY_ACT", "")
        if act == "crash":
            os.write(2, b"the last words")
            faulthandler.enable()
            os.kill(os.getpid(), signal.SIGSEGV)
        if act == "flood":
            wait_for(Path("go").exists, "the test")
            for n in range(0, FLOOD, 400):
                os.write(1, b"".join(b"%06d with %s and more\n" % (n + i, KEY.encode()) for i in range(400)))
            Path(f"flooded-{rank}").touch()
        if act == "wait":
            wait_for(Path("go").exists, "the test")
