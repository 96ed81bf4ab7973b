"""A Jupyter kernel for tests: cells go in, and what they say is kept with its cell; and Colab's kernel in an
environment of its own.
"""

import ast
import fcntl
import json
import os
import signal
import site
import subprocess
import sys
import time
import uuid
import venv
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from typing import Any

import psutil
from jupyter_client import KernelManager
from jupyter_client.kernelspec import KernelSpecManager

import helpers
import spectrakit

# Colab's and Kaggle's kernel with what it was released for; everything else comes from the environment that runs the
# tests.
COLAB = (
    "ipykernel==6.17.1",
    "ipython==7.34.0",
    "jupyter_client==7.4.9",
    "traitlets==5.7.1",
    "tornado==6.5.1",
    "pyzmq==26.2.1",
    "nest-asyncio==1.6.0",
    "entrypoints==0.4.2",
    "jedi==0.20.1",
    "parso==0.8.7",
    "decorator==5.3.1",
    "backcall==0.2.0",
    "pickleshare==0.7.5",
    "matplotlib-inline==0.2.2",
    "prompt_toolkit==3.0.53",
    "pexpect==4.9.0",
    "ptyprocess==0.7.0",
    "ipywidgets==7.7.1",
    "ipython-genutils==0.2.0",
)
BEGIN = """
import os, signal, threading, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import TensorDataset
from spectrakit.config.compose import compose
from spectrakit.api.actions import fit
from spectrakit.task.task import Task

HERE = Path.cwd()

class Tiny(Task):
    "A line through 64 points. Something happens on one rank in some of its training steps, each time once."
    def __init__(self, happens=None, rank=1): self.happens, self.rank, self.calls = happens or {}, rank, 0

    def datasets(self, cfg):
        x = torch.linspace(-1, 1, 64)[:, None]
        return TensorDataset(x, 2 * x + 1), TensorDataset(x[::4], 2 * x[::4] + 1)

    def model(self, cfg): return nn.Linear(1, 1)

    def loss(self, model, batch):
        self.calls += model.training
        if model.training and int(os.environ.get("RANK", 0)) == self.rank:
            if "slow" in self.happens: time.sleep(0.05)
            if self.calls in self.happens: self.happen(self.happens[self.calls])
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def happen(self, what):
        verb, name = what.split()
        if (HERE / name).exists(): return
        (HERE / name).write_text(str(os.getpid()))
        if verb == "raise": raise ValueError(f"no luck with {name}")
        while verb == "sleep" or not (HERE / f"go-{name}").exists(): time.sleep(0.01)  # hold: until it may go on

def config(name, *words):
    return compose("trainer.accelerator=cpu", "trainer.devices=2", "data.micro_batch_size=4",
                   "accumulate_grad_batches=1", "trainer.max_epochs=3",
                   "trainer.log_every_n_steps=1", "trainer.log_min_seconds=0",
                   "checkpoint.every_n_steps=2", "optimizer.lr=0.1", f"run.name={name}", *words)

large = torch.exp(torch.randn(4_000_000))  # by now torch has its threads, which a fork would not take along
"""
# A task that cannot be pickled, so that a fork of the kernel itself has to take it along.
LOCKED = """
class Locked(Tiny):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()
"""

SHOWN = ("stream", "display_data", "update_display_data", "execute_result", "comm_msg")  # messages that a person sees


PATIENCE_S = 240  # until something fails that a busy machine only does late


class CannotInstall(RuntimeError):
    "The packages cannot be had here."


def python_with(packages: tuple[str, ...], folder: Path) -> str:
    """The Python of an environment in `folder` with `packages`, pinned, in front of everything that this environment
    has.

    Made once; CannotInstall where pip reaches no index.
    """
    folder.mkdir(parents=True, exist_ok=True)
    python, ready = folder / "bin" / "python", folder / "ready.json"
    there = [*site.getsitepackages(), str(Path(spectrakit.__file__).parent.parent)]
    wanted = json.dumps([sys.version, sys.base_prefix, there, packages])
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other workers of the tests wait here
        if ready.is_file() and ready.read_text() == wanted:
            return str(python)
        ready.unlink(missing_ok=True)
        venv.create(folder, clear=False, symlinks=True, with_pip=True)
        done = subprocess.run(
            [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", *packages],
            capture_output=True,
            text=True,
            timeout=240,
            env=helpers.clean_environ(),
            stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            raise CannotInstall((done.stderr.strip().splitlines() or ["pip said nothing"])[-1])
        own = Path(
            subprocess.check_output(
                [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
            ).strip()
        )
        # addsitedir adds at the end of the path, and reads the .pth files of what it adds
        (own / "the-tests-environment.pth").write_text(
            "".join(f"import site; site.addsitedir({path!r})\n" for path in there)
        )
        ready.write_text(wanted)
    return str(python)


@dataclass(frozen=True)
class Heard:
    """A message that a person sees: when the kernel made it, in Unix seconds, its type, the bytes of its content, which
    is JSON, and the display that it belongs to.
    """

    at: float
    kind: str
    size: int
    display: str | None


@dataclass
class Cell:
    "A cell that was sent: what it has shown so far, as (message type, text), and its reply."

    id: str
    frames: list[tuple[str, str]] = field(default_factory=list)
    heard: list[Heard] = field(default_factory=list)
    replied_at: float | None = None
    errors: list[str] = field(default_factory=list)
    warned: str = ""  # stderr
    reply: dict | None = None
    idle: bool = False

    @property
    def text(self) -> str:
        "All that it has shown."
        return "".join(text for _, text in self.frames)


def _waits(process: psutil.Process) -> bool:
    "Whether it is what `launch.warm_worker` keeps for the next run, and has none yet."
    try:
        return "launch.warm_worker import serve" in " ".join(process.cmdline()) and process.cwd() == "/"
    except psutil.Error:
        return False


class Notebook:
    """A kernel that runs in `folder`, whose processes are all known by a mark in their environment.

    To be used with `with`.
    """

    def __init__(self, python: str, folder: Path):
        self.folder, self.mark, self.cells = folder, uuid.uuid4().hex, []
        self.strays: list[tuple[str, str]] = []  # shown, and not in the cell that was running
        self.opened: dict[str, dict] = {}  # the state that a widget began with, by the name of its comm
        spec = folder / "kernels" / "tested"
        spec.mkdir(parents=True)
        (spec / "kernel.json").write_text(
            json.dumps(
                {
                    "argv": [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
                    "display_name": "tested",
                    "language": "python",
                }
            )
        )
        (folder / "temporary").mkdir()
        self.temporary = folder / "temporary"
        self._specs = KernelSpecManager(kernel_dirs=[str(spec.parent)])
        self._manager = self._new_manager()

    def _new_manager(self) -> KernelManager:
        return KernelManager(
            kernel_name="tested",
            kernel_spec_manager=self._specs,
            connection_file=str(self.folder / "connection.json"),
        )

    def __enter__(self) -> "Notebook":
        folders = {
            name: str(self.folder / name.lower())
            for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR")
        }
        environ = {**helpers.clean_environ(), **folders, "NOTEBOOK_MARK": self.mark, "TMPDIR": str(self.temporary)}
        for attempt in range(3):
            try:
                self._manager.start_kernel(cwd=str(self.folder), env=environ)
                self._client = self._manager.blocking_client()
                self._client.start_channels()
                self._client.wait_for_ready(timeout=PATIENCE_S)
                self.pid = self.ask("__import__('os').getpid()")
                return self
            except BaseException as error:
                died = isinstance(error, RuntimeError) and not self._manager.is_alive()
                self.__exit__()
                if not died or attempt == 2:
                    raise
            self._manager = self._new_manager()  # somebody else took one of its ports before it did
        raise AssertionError("unreachable")

    def __exit__(self, *_: Any) -> None:
        for process in self.processes():
            process.kill()
        if hasattr(self, "_client"):
            self._client.stop_channels()
        if self._manager.has_kernel:
            self._manager.shutdown_kernel(now=True)
        self._manager.cleanup_resources()
        self._manager.context.destroy(linger=0)

    def processes(self) -> list[psutil.Process]:
        "Every living process that comes from this notebook, also one that has lost its parent; the kernel is one."
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("NOTEBOOK_MARK") == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                pass
        return found

    def below(self) -> list[psutil.Process]:
        "The same without the kernel and what waits for its next run; and its zombies, which it should have buried."
        found = {process.pid: process for process in (*self.processes(), *psutil.Process(self.pid).children(True))}
        others = [process for process in found.values() if process.pid != self.pid]
        return [process for process in others if not _waits(process) and not helpers.is_relay(process)]

    # cells

    def send(self, code: str, **asked: str) -> Cell:
        "Start a cell."
        assert not self.cells or self.cells[-1].reply is not None, "the last cell still runs"
        self.cells.append(Cell(self._client.execute(code, user_expressions=asked)))
        return self.cells[-1]

    def wait(self, cell: Cell, timeout_s: float = PATIENCE_S) -> Cell:
        "Wait for the end of a cell."
        self.until(lambda: cell.reply is not None and cell.idle, "the cell's end", timeout_s)
        return cell

    def run(self, code: str, timeout_s: float = PATIENCE_S) -> Cell:
        "A cell from beginning to end. AssertionError where it fails or warns."
        return whole(self.wait(self.send(code), timeout_s))

    def ask(self, expression: str) -> Any:
        "What a plain expression is worth in the notebook."
        found = whole(self.wait(self.send("", found=expression))).reply["user_expressions"]["found"]
        assert found["status"] == "ok", found
        return ast.literal_eval(found["data"]["text/plain"])

    def until(self, condition: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S) -> Any:
        """The first true value of `condition()` while messages come in; an AssertionError with what was said where it
        does not come.
        """
        end = time.monotonic() + timeout_s
        while True:
            self._listen()
            if value := condition():
                return value
            if not self._manager.is_alive():
                raise AssertionError(f"the kernel died before {what}: {self.cells[-1]}")
            if time.monotonic() > end:
                raise AssertionError(f"waited {timeout_s} s in vain for {what}: {self.cells[-1]}")

    def _listen(self) -> None:
        "Take what the kernel has said by now; waits a moment where it is silent."
        while True:
            try:
                self._heard(self._client.get_iopub_msg(timeout=0.02))
            except Empty:
                break
        try:
            reply = self._client.get_shell_msg(timeout=0)
        except Empty:
            return
        for cell in self.cells:
            if reply["parent_header"].get("msg_id") == cell.id:
                cell.reply, cell.replied_at = reply["content"], time.monotonic()

    def _heard(self, message: dict) -> None:
        kind, content = message["msg_type"], message["content"]
        cell = next((c for c in self.cells if c.id == message["parent_header"].get("msg_id")), None)
        if kind in SHOWN:
            if cell:
                cell.heard.append(
                    Heard(
                        message["header"]["date"].timestamp(),
                        kind,
                        len(json.dumps(content).encode()),
                        content.get("transient", {}).get("display_id"),
                    )
                )
            text = content["text"] if kind == "stream" else json.dumps(content["data"], sort_keys=True)
            if cell is None or cell is not self.cells[-1] or cell.idle:
                self.strays.append((kind, text))
            elif content.get("name") == "stderr":
                cell.warned += text
            else:
                cell.frames.append((kind, text))
        elif kind == "comm_open":
            self.opened[content["comm_id"]] = content["data"].get("state", {})
        elif cell is not None and kind == "error":
            cell.errors.append("\n".join(content["traceback"]))
        elif cell is not None and kind == "status" and content["execution_state"] == "idle":
            cell.idle = True

    def click(self, label: str, subshell: str | None = None) -> None:
        """Press the button with this label.

        `subshell`: what `open_subshell` gave, through which JupyterLab's pages talk; None: the main channel, as for
        kernels that listen to nothing else.
        """
        comm = next(comm for comm, state in reversed(self.opened.items()) if state.get("description") == label)
        content = {"comm_id": comm, "data": {"method": "custom", "content": {"event": "click"}}}
        message = self._client.session.msg("comm_msg", content)
        if subshell is not None:
            message["header"]["subshell_id"] = subshell
        self._client.shell_channel.send(message)

    def open_subshell(self) -> str:
        "A second thread of the kernel (ipykernel 7) that hears messages while a cell is busy."
        self._client.control_channel.send(self._client.session.msg("create_subshell_request", {}))
        return self._client.get_control_msg(timeout=PATIENCE_S)["content"]["subshell_id"]

    # signals

    def interrupt(self, how: str) -> None:
        """The stop button: as Jupyter does it (`group`: the kernel's process group), as VS Code (`tree`), or to the
        kernel `alone`.
        """
        if how == "group":
            self._manager.interrupt_kernel()
        elif how == "alone":
            os.kill(self.pid, signal.SIGINT)
        else:
            for process in self.processes():
                process.send_signal(signal.SIGINT)


def whole(cell: Cell) -> Cell:
    "The cell, which went well and said nothing on stderr."
    assert cell.reply["status"] == "ok" and not cell.errors, cell
    assert cell.warned == "", cell
    return cell
