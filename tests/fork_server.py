"""A process that has imported torch and spectrakit once, and forks what a test would start in a fresh interpreter.

`helpers.run_cli` and `helpers.start_cli` ask it for commands; the training processes of `fit`, `resume` and `predict`
in a test come from it, too (`conftest.py` sees to that), and so does the process in which a notebook's cells run.
What these start is no fresh one either. A fresh interpreter costs three seconds of a core before it does anything;
most tests are not about that, and those that are say `fresh=True`, or `@pytest.mark.fresh`. The server has no
threads but idle ones of BLAS, and never computes, so a fork of it is as good as new; what is read only at a start
(variables of OpenMP) needs a fresh one.
"""

import array
import atexit
import contextlib
import ctypes
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

# What an interpreter, or a library as it is loaded, reads once: with one of these a command gets a process of its own.
# And the path on which training processes find their packages.
AT_START = (
    "PYTHON",
    "LD_",
    "OMP_",
    "KMP_",
    "MKL_",
    "GOMP_",
    "MPL",
    "CUDA_",
    "TORCH_",
    "MALLOC_",
    "SPECTRAKIT_LAUNCH_PATH",
)


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
    "A server of this process: it ends when this process does."

    def __init__(self, connection: socket.socket, environ: dict[str, str], process: subprocess.Popen | None = None):
        self.environ, self.process = environ, process
        self._socket, self._owner = connection, os.getpid()
        atexit.register(self.close)

    def close(self) -> None:
        "End the server; a forked copy of this process leaves it alone."
        if os.getpid() == self._owner:
            self._socket.close()
            if self.process is not None:
                self.process.wait(30)

    def ended(self) -> bool:
        "Whether another one has to be started: it is gone, or belongs to the process that this one was forked from."
        return os.getpid() != self._owner or (self.process is not None and self.process.poll() is not None)

    def _ask(self, request: dict, *descriptors: int) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            passed = array.array("i", [theirs.fileno(), *descriptors])
            self._socket.sendmsg([json.dumps(request).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
        return ours

    def start(
        self, do: str, words: list[str], cwd: Path, env: dict[str, str], session: bool = False, network: str = ""
    ) -> Served:
        """What `do` says (`command`, `cells`) with `words`, in the folder `cwd`, with exactly the environment `env`.

        `network`: the name of the network namespace in which it runs, where that is not this process's own.
        """
        (out, child_out), (err, child_err) = os.pipe(), os.pipe()
        request = {"do": do, "words": words, "cwd": str(cwd), "env": env, "session": session, "network": network}
        try:
            ours = self._ask(request, child_out, child_err)
        finally:
            os.close(child_out), os.close(child_err)
        return Served(ours, [sys.executable, "-m", "spectrakit", *words], out, err)

    def start_script(self, words: list[str], cwd: Path, env: dict[str, str], output: int) -> Served:
        "A session of its own for the script words[0], which writes to the open file `output`."
        request = {"do": "script", "words": words, "cwd": str(cwd), "env": env, "session": True}
        return Served(self._ask(request, output, output), [sys.executable, *words], None, None)

    def train(self, folder: str, env: dict[str, str], log: str) -> Any:
        "A training process for the job in `folder`, as a child of this process."
        from spectrakit.launch.attempt import ForkedProcess

        child = object.__new__(ForkedProcess)
        child.pid, child.returncode = self._adopt({"do": "train", "folder": folder, "env": env, "log": log}), None
        return child

    def wait_for_jobs(self, env: dict[str, str]) -> "Spare":
        "What `launch.warm_worker` keeps for the next job, as a child of this process."
        (read, stdin), (stdout, write) = os.pipe(), os.pipe()
        try:
            return Spare(self._adopt({"do": "spare", "env": env}, read, write), stdin, stdout)
        finally:
            os.close(read), os.close(write)

    def _adopt(self, request: dict, *descriptors: int) -> int:
        "The number of the process that the server has forked, which is now a child of this one."
        request |= {"cwd": os.getcwd(), "parent": os.getpid()}
        with _adopting:  # another thread would not end it where this one's child is not there yet
            _adopts_orphans(True)
            try:
                with self._ask(request, *descriptors) as connection:
                    return json.loads(connection.recv(4096))["pid"]
            finally:
                _adopts_orphans(False)


class Spare:
    "A process that waits for jobs, with the part of `subprocess.Popen` that `launch.warm_worker` uses."

    def __init__(self, pid: int, stdin: int, stdout: int):
        self.pid, self.returncode = pid, None
        self.stdin, self.stdout = os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb", 0)

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # `kill_tree` has buried it
                pid, status = self.pid, signal.SIGKILL
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("a spare", timeout)
            time.sleep(0.002)
        return self.returncode or 0


_adopting = threading.Lock()


def _adopts_orphans(yes: bool) -> None:
    "Have Linux make this process the parent of what its descendants leave behind, or process 1 again."
    if ctypes.CDLL(None, use_errno=True).prctl(36, int(yes), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


_clients: dict[str, Client] = {}
_starting = threading.Lock()


def serves(env: dict[str, str]) -> bool:
    "Whether a forked process is as good as a fresh one for a command with the environment `env`."
    read = [name for name in env if name.startswith(AT_START) and name != "PYTHONPATH"]  # `be` knows that one
    return hasattr(os, "fork") and not has_gpu() and all(os.environ.get(name) == env[name] for name in read)


def has_gpu() -> bool:
    "Whether NVIDIA's driver is here. Once a process has asked it for anything, its forks have no GPU."
    return Path("/proc/driver/nvidia/version").exists()


kind_of_test = "plain"  # what a server of this test's commands and training processes has imported


def client(kind: str | None = None) -> Client:
    "This process's server; `notebooks` is one that has imported nbdev as well, `models` what a task `lm` imports."
    kind = kind or kind_of_test
    with _starting:
        if kind not in _clients or _clients[kind].ended():
            _clients[kind] = _new_client(kind)
        return _clients[kind]


def _new_client(kind: str) -> Client:
    from helpers import clean_environ

    environ = {**clean_environ(), "OMP_NUM_THREADS": "2", "MPLBACKEND": "agg"}
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        words = [sys.executable, __file__, str(theirs.fileno()), kind]
        process = subprocess.Popen(words, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environ)
    return Client(ours, environ, process)


def start(words: list[str], cwd: Path, env: dict[str, str], session: bool = False, network: str = "") -> Served:
    "Start a command through this process's server."
    return client().start("command", words, cwd, env, session, network)


def start_cells(words: list[str], cwd: Path, env: dict[str, str]) -> Served:
    "Run the cells of the notebook words[0], leaving out those with the flags words[1:]."
    return client("notebooks").start("cells", words, cwd, env)


class Processes:
    "Stands for the module subprocess in `launch.attempt`: training processes come from `fork`, others as ever."

    def __init__(self, fork: Callable[[str, dict[str, str], str], Any]):
        self._fork = fork

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def Popen(self, args: Any, **keywords: Any) -> Any:
        from spectrakit.launch.worker import START

        if isinstance(args, list) and args[1:4] == ["-P", "-c", START]:
            child = self._fork(args[4], keywords["env"], keywords["stdout"].name)
            if child is not None:
                return child
        return subprocess.Popen(args, **keywords)


class Spares(Processes):
    "The same for `launch.warm_worker`: what waits for jobs comes from this process's server."

    def __init__(self) -> None:
        super().__init__(lambda *_: None)

    def Popen(self, args: Any, **keywords: Any) -> Any:
        from spectrakit.launch.warm_worker import _SERVE

        server, env = client(), keywords["env"]
        if args[3] == _SERVE and as_at_start(server.environ, env):
            return server.wait_for_jobs(env)
        return subprocess.Popen(args, **keywords)


def from_server(folder: str, env: dict[str, str], log: str) -> Any:
    "A training process from this process's server; None where it needs a fresh interpreter."
    server = client()
    return server.train(folder, env, log) if as_at_start(server.environ, env) else None


def forks_training(yes: bool) -> None:
    "Whether training processes that this process starts are forked from its server; only where launch is loaded."
    attempt = sys.modules.get("spectrakit.launch.attempt")
    if attempt is not None and sys.platform.startswith("linux"):
        attempt.subprocess = Processes(from_server) if yes else subprocess
        sys.modules["spectrakit.launch.warm_worker"].subprocess = Spares() if yes else subprocess


def write_small_picture(picture: Any, path: Path) -> Path:
    "Stand in for `save_figure`, which takes twice as long as a small run trains: write a PNG of one pixel."
    head, pixel = struct.pack(">2I5B", 1, 1, 8, 0, 0, 0, 0), zlib.compress(b"\0\xff")
    parts = [(b"IHDR", head), (b"IDAT", pixel), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    ]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    return path


def draw_curves(yes: bool) -> None:
    "Let runs of this process and its forks draw their curves, or write a small picture; only where the API is loaded."
    if run := sys.modules.get("spectrakit.api.run"):
        from spectrakit.view.picture import save_figure

        run.save_figure = save_figure if yes else write_small_picture  # type: ignore[attr-defined]  # for tests alone


# --- the server's side ------------------------------------------------------------------------------------------------


def preload(kind: str) -> None:
    "Import what commands import, and have their training processes forked, too."
    import importlib
    import pkgutil

    import accelerate  # noqa: F401  # so that no child has to
    import matplotlib.pyplot  # noqa: F401  # the same
    import torch
    import torch._dynamo  # torch imports it when an optimizer makes its first step: two seconds
    import torch.distributed.tensor  # the same

    import spectrakit

    for module in pkgutil.walk_packages(spectrakit.__path__, "spectrakit."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    if kind == "notebooks":
        import nbdev.test  # noqa: F401  the same
    if kind == "models":  # two seconds for each process of a language model
        import peft  # noqa: F401  the same
        from transformers import AutoModelForCausalLM, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: F401  too
    spectrakit.compose()  # imports Hydra
    assert not torch.cuda.is_initialized()
    gc.collect()
    gc.freeze()  # no child looks through all this when it ends: it would take each a second
    for library in weakref.finalize._registry:  # type: ignore[attr-defined]  # nor takes torch's libraries apart
        library.atexit = False
    from spectrakit.launch import attempt

    attempt.subprocess = Processes(from_command)
    draw_curves(False)


def from_command(folder: str, env: dict[str, str], log: str) -> Any:
    "A training process, forked from this command, which never computes; None where it needs a fresh interpreter."
    from spectrakit.launch.attempt import ForkedProcess

    if not as_at_start(dict(os.environ), env):
        return None
    use_threads(env)
    return ForkedProcess(Path(folder), None, env, Path(log))


def as_at_start(ours: dict[str, str], env: dict[str, str]) -> bool:
    "Whether a fork can be the training process with `env`: all that is read at a start is as it is in `ours`."
    from spectrakit.distributed.topology import NCCL_DEFAULTS  # torch's own defaults, spelt out for several ranks

    if has_gpu():
        return False
    ours, env = {**NCCL_DEFAULTS, **ours}, {**NCCL_DEFAULTS, **env}
    names = {name for name in {*ours, *env} if name.startswith(AT_START)}
    names -= {"OMP_NUM_THREADS", "PYTHONUNBUFFERED", "MPLBACKEND"}
    if "PYTHONPATH" not in ours:
        names.discard("PYTHONPATH")  # then it only repeats the path that this process has
    return all(ours.get(name) == env.get(name) for name in names)


def use_threads(env: dict[str, str]) -> None:
    "As many threads as OMP_NUM_THREADS says, which torch reads at its start."
    import torch

    torch.set_num_threads(int(env["OMP_NUM_THREADS"]))


def be(request: dict, descriptors: list[int]) -> NoReturn:
    "In the fork: become the command, or the process of a notebook."
    _, out, err = descriptors
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0), os.dup2(out, 1), os.dup2(err, 2)
    for descriptor in (nothing, *descriptors):
        os.close(descriptor)
    if request["session"]:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the server may have been started where nobody hears it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", 1, closefd=False)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    tempfile.tempdir = None  # the server's, of the test that began it
    sys.path[1:1] = filter(None, request["env"].get("PYTHONPATH", "").split(os.pathsep))  # where a start puts them
    if request.get("network"):
        enter_network(request["network"])
    try:
        become(request)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            leave(end.code or 0)
        raise


def become(request: dict) -> NoReturn:
    "Be what the request says, in a process that is otherwise as it has to be; ends with SystemExit, as scripts do."
    if request["do"] == "cells":
        serve_this_process()
        sys.exit(run_cells(*request["words"]))
    if request["do"] == "script":
        if not request["session"]:  # by `run_script`, whose script may have threads that compute
            forks_training(False)
        sys.argv, sys.path[0] = request["words"], str(Path(request["words"][0]).parent)
        runpy.run_path(sys.argv[0], run_name="__main__")
        sys.exit()
    sys.argv = [str(Path(sys.modules["spectrakit"].__file__ or "").with_name("__main__.py")), *request["words"]]
    sys.path[0] = request["cwd"]  # what `python -m` puts there
    from spectrakit.cli.main import main

    sys.exit(main())


def leave(status: int) -> None:
    "End as an interpreter does, but for taking apart all that it has imported, which takes a sixth of a second."
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the end of an interpreter does
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):  # then the interpreter's own end says what it has to say
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(status)


def enter_network(name: str) -> None:
    "What `ip netns exec` does: from now on this process sees the network cards of that namespace alone."
    with open(f"/var/run/netns/{name}") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0x40000000):  # CLONE_NEWNET
            raise OSError(ctypes.get_errno(), "setns")


def serve_this_process() -> None:
    "A server of its own for the process of a notebook, whose cells may compute: a fork of it would not be as new."
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        serve(theirs)
        os._exit(0)
    theirs.close()
    _clients["plain"] = Client(ours, dict(os.environ))
    forks_training(True)


def run_cells(notebook: str, *skipped: str) -> int:
    "What `nbdev_test --path NOTEBOOK` does."
    from nbdev.config import get_config
    from nbdev.test import test_nb

    passed, _ = test_nb(Path(notebook), skip_flags=skipped, basepath=get_config().config_path)
    return 0 if passed else 1


def train(request: dict, descriptors: list[int]) -> int:
    "Fork a training process, or one that waits for jobs, leave it to the process that asked, and return its number."
    received, sent = os.pipe()
    if (middle := os.fork()) == 0:
        middle = os.getpid()
        if (pid := os.fork()) == 0:
            be_trained(request, middle) if request["do"] == "train" else be_spare(request, middle, *descriptors)
        os.write(sent, str(pid).encode())
        os._exit(0)
    os.close(sent)
    os.waitpid(middle, 0)  # from now on it has its new parent
    with os.fdopen(received) as told:
        return int(told.read())


def be_spare(request: dict, middle: int, stdin: int, stdout: int) -> NoReturn:
    "In the fork: become the process that waits for jobs."
    from spectrakit.launch import attempt, warm_worker

    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(stdin, 0), os.dup2(stdout, 1), os.dup2(nothing, 2)
    be_adopted(request, middle)
    os.setsid()
    os.chdir("/")
    os.environ.clear()
    os.environ.update(request["env"])
    attempt.subprocess = subprocess  # type: ignore[attr-defined]  # as it was imported there
    sys.argv = ["-c", str(request["parent"]), str(sys.modules["spectrakit"].__file__)]
    os._exit(warm_worker.serve(request["parent"]))


def be_adopted(request: dict, middle: int) -> None:
    "In the fork: leave the server's things behind, and wait until the process that asked is the parent."
    signal.set_wakeup_fd(-1)
    os.closerange(3, 1024)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # as `sigint_blocked` has it
    while os.getppid() == middle:
        time.sleep(0.001)
    use_threads(request["env"])


def be_trained(request: dict, middle: int) -> None:
    "In the fork: become the training process."
    from spectrakit.launch.attempt import _be_child

    be_adopted(request, middle)
    os.chdir(request["cwd"])
    _be_child(Path(request["folder"]), None, request["env"], Path(request["log"]))


def serve(channel: socket.socket) -> None:
    "Fork a child for each request, and tell each its status; ends when the process that asks is gone."
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
                request = json.loads(text)
                answer = socket.socket(fileno=descriptors[0])
                if request["do"] in ("train", "spare"):
                    with answer:
                        answer.sendall(json.dumps({"pid": train(request, list(descriptors[1:]))}).encode() + b"\n")
                    for descriptor in descriptors[1:]:
                        os.close(descriptor)
                    continue
                if (pid := os.fork()) == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for held in (channel, woken, wake, *children.values()):
                        held.close()
                    answer.detach()
                    selector.close()
                    be(request, list(descriptors))
                children[pid] = answer
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
        preload(sys.argv[2])
        os.chdir("/")  # no test's folder, in which it looks for processes that were left
        serve(requests)
