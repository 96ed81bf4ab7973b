"""A process that has imported torch and spectrakit once, and forks each command that a test starts.

`helpers.run_cli` and `helpers.start_cli` ask it. What such a command starts is no fresh one either: its training
process is forked from the command itself. A fresh interpreter costs three seconds of a core before it does anything;
most tests are not about that, and those that are say `fresh=True`. The server has no threads and never computes, so a
fork of it is as good as new; what is read only at a start (PYTHONPATH, variables of OpenMP) needs a fresh one.
"""

import array
import atexit
import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

# What an interpreter, or a library as it is loaded, reads once: with one of these a command gets a process of its own.
AT_START = ("PYTHON", "LD_", "OMP_", "KMP_", "MKL_", "GOMP_", "MPL", "CUDA_", "TORCH_", "MALLOC_")


class Served:
    "A command that the server has forked; used like a `subprocess.Popen` with pipes and text."

    def __init__(self, connection: socket.socket, args: list[str], out: int | None, err: int | None):
        self.args, self.returncode = args, None
        self._connection = connection
        self.pid = int(self._line()["pid"])
        self.stdout = None if out is None else os.fdopen(out, encoding="utf-8", errors="replace")
        self.stderr = None if err is None else os.fdopen(err, encoding="utf-8", errors="replace")

    def _line(self) -> dict:
        text = b""
        while not text.endswith(b"\n"):
            if not (part := self._connection.recv(4096)):
                raise ConnectionError("the server of forks is gone")
            text += part
        return json.loads(text)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._connection, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = self._line()["status"]
            self._connection.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        "What it printed from here on, once both pipes are closed and it has ended."
        end = None if timeout is None else time.monotonic() + timeout
        parts: dict[Any, bytearray] = {
            pipe: bytearray() for pipe in (self.stdout, self.stderr) if pipe and not pipe.closed
        }
        with selectors.DefaultSelector() as selector:
            for pipe in parts:
                selector.register(pipe, selectors.EVENT_READ)
            while selector.get_map():
                left = None if end is None else end - time.monotonic()
                ready = selector.select(left) if left is None or left > 0 else []
                if not ready:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0)
                for key, _ in ready:
                    if part := os.read(key.fd, 65536):
                        parts[key.fileobj] += part
                    else:
                        selector.unregister(key.fileobj)
        texts = [parts[pipe].decode(errors="replace") if pipe in parts else "" for pipe in (self.stdout, self.stderr)]
        for pipe in parts:
            pipe.close()
        self.wait(None if end is None else max(0.0, end - time.monotonic()))
        return texts[0], texts[1]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> "Served":
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self.stdout, self.stderr):
            if pipe:
                pipe.close()
        self.wait()


class Client:
    "The server of this test process: started at its first use, gone with the process."

    def __init__(self) -> None:
        from helpers import clean_environ

        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**clean_environ(), "OMP_NUM_THREADS": "2", "MPLBACKEND": "agg"},
            )
        self._socket, self._owner = ours, os.getpid()
        atexit.register(self.close)

    def close(self) -> None:
        "End the server; a forked copy of the tests leaves it alone."
        if os.getpid() == self._owner:
            self._socket.close()
            self.process.wait(30)

    def start(self, words: list[str], cwd: Path, env: dict[str, str], session: bool = False) -> Served:
        "`python -m spectrakit WORDS` in the folder `cwd` with exactly the environment `env`."
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        (out, child_out), (err, child_err) = os.pipe(), os.pipe()
        request = json.dumps({"words": words, "cwd": str(cwd), "env": env, "session": session}).encode()
        passed = array.array("i", [theirs.fileno(), child_out, child_err])
        try:
            self._socket.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
        finally:
            theirs.close()
            os.close(child_out), os.close(child_err)
        return Served(ours, [sys.executable, "-m", "spectrakit", *words], out, err)


_client: Client | None = None


def serves(env: dict[str, str]) -> bool:
    "Whether a forked process is as good as a fresh one for a command with the environment `env`."
    return hasattr(os, "fork") and not any(
        name.startswith(AT_START) and os.environ.get(name) != env[name] for name in env
    )


def start(words: list[str], cwd: Path, env: dict[str, str], session: bool = False) -> Served:
    "Start a command through this process's server."
    global _client
    if _client is None or _client.process.poll() is not None:
        _client = Client()
    return _client.start(words, cwd, env, session)


# --- the server's side ------------------------------------------------------------------------------------------------


def preload() -> None:
    "Import what commands import, and have their training processes forked, too."
    import importlib
    import pkgutil

    import accelerate  # noqa: F401  # so that no child has to
    import matplotlib.pyplot  # noqa: F401  # the same
    import torch

    import spectrakit

    for module in pkgutil.walk_packages(spectrakit.__path__, "spectrakit."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    assert not torch.cuda.is_initialized()
    from spectrakit.launch import attempt
    from spectrakit.launch.worker import START

    class Processes:
        "The module subprocess, but for one kind of process."

        def __getattr__(self, name: str) -> Any:
            return getattr(subprocess, name)

        def Popen(self, args: Any, **keywords: Any) -> Any:
            if isinstance(args, list) and args[1:3] == ["-c", START] and serves_worker(keywords["env"]):
                return attempt.ForkedProcess(Path(args[3]), None, keywords["env"], Path(keywords["stdout"].name))
            return subprocess.Popen(args, **keywords)

    attempt.subprocess = Processes()


def serves_worker(env: dict[str, str]) -> bool:
    "Whether a fork can be the training process with this environment: all that is read at a start is as it is here."
    set_below = {"OMP_NUM_THREADS", "PYTHONUNBUFFERED"}
    names = {name for name in {*os.environ, *env} if name.startswith(AT_START)} - set_below
    if "PYTHONPATH" not in os.environ:
        names.discard("PYTHONPATH")  # then it only repeats the path that this process has
    if any(os.environ.get(name) != env.get(name) for name in names):
        return False
    import torch

    torch.set_num_threads(int(env["OMP_NUM_THREADS"]))
    return True


def be(request: dict, descriptors: list[int]) -> NoReturn:
    "In the fork: become the command."
    _, out, err = descriptors
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0), os.dup2(out, 1), os.dup2(err, 2)
    for descriptor in (nothing, *descriptors):
        os.close(descriptor)
    if request["session"]:
        os.setsid()
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", 1, closefd=False)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = [str(Path(sys.modules["spectrakit"].__file__ or "").with_name("__main__.py")), *request["words"]]
    sys.path[0] = request["cwd"]  # what `python -m` puts there
    from spectrakit.cli.main import main

    sys.exit(main())


def serve(channel: socket.socket) -> None:
    "Fork a child for each request, and tell each its status; ends when the tests are gone."
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno())
    children: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is woken:
                    woken.recv(4096)
                    reap(children)
                    continue
                text, ancillary, _, _ = channel.recvmsg(2**20, socket.CMSG_SPACE(12))
                if not text:
                    return
                descriptors = array.array("i")
                descriptors.frombytes(ancillary[0][2])
                if (pid := os.fork()) == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for held in (channel, woken, wake, *children.values()):
                        held.close()
                    selector.close()
                    be(json.loads(text), list(descriptors))
                children[pid] = socket.socket(fileno=descriptors[0])
                for descriptor in descriptors[1:]:
                    os.close(descriptor)
                children[pid].sendall(json.dumps({"pid": pid}).encode() + b"\n")


def reap(children: dict[int, socket.socket]) -> None:
    "Tell the tests of each child that has ended."
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with children.pop(pid) as connection, contextlib.suppress(OSError):
            connection.sendall(json.dumps({"status": os.waitstatus_to_exitcode(status)}).encode() + b"\n")


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        del sys.path[0]  # the folder of the tests
        sys.path.insert(0, "")
        preload()
        serve(requests)
