"""Run a command in a tree of its own, without network: namespaces by root or, where allowed, by a user's own."""

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from kaggle_sim.environment import Environment

INSIDE = Path(__file__).with_name("inside.py")
UNSHARE = ("unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--kill-child")
MIB = 1 << 20


class NotPermitted(RuntimeError):
    "This machine or this user may not make namespaces."


class Broken(RuntimeError):
    "The tree of a session could not be built."


@dataclass
class Tree:
    "What a session sees beside the system and its Python. Paths are the session's own."

    cwd: str
    environ: dict[str, str]
    hostname: str = "kaggle"
    disks: list[tuple[str, int]] = field(default_factory=list)  # folder, bytes it can hold
    binds: list[tuple[str, str, bool]] = field(default_factory=list)  # this machine's path, the session's, writable
    files: dict[str, tuple[str, int]] = field(default_factory=dict)  # text, mode
    sealed: list[str] = field(default_factory=list)  # disks that end up read-only
    before: list[list[str]] = field(default_factory=list)  # commands that prepare the session, not on its clock
    gpus: bool = False  # this machine's NVIDIA devices
    memory_bytes: int = 4 << 30  # of /tmp, and of what is installed


@dataclass(frozen=True)
class Session:
    "What became of a session."

    how: str  # ended, limit (killed at its end), abandoned
    status: int | None  # the command's exit status; None where it was killed
    seconds: float
    log: tuple[dict, ...]  # as Kaggle's: stream_name, time, data
    out: Path  # what it left

    @property
    def text(self) -> str:
        return "".join(entry["data"] for entry in self.log)

    @property
    def verdict(self) -> str:
        "Kaggle's word for it."
        if self.how == "ended":
            return "ERROR" if self.status else "COMPLETE"
        return "CANCEL_ACKNOWLEDGED"

    def files(self) -> list[str]:
        return sorted(path.relative_to(self.out).as_posix() for path in self.out.rglob("*") if not path.is_dir())


def run(  # noqa: PLR0913 - the one call under both simulations, which pass most of it on
    command: list[str],
    tree: Tree,
    environment: Environment,
    keep: str,
    out: Path,
    log: Path,
    limit_s: float,
    quiet: bool = False,
    kill_after: tuple[str, float] | None = None,
    watched: str | None = None,
) -> Session:
    """Run `command` as a session of at most `limit_s` seconds; the folder `keep` of it is then in `out`, also after a
    failure.

    `kill_after`: a pattern below `watched` (or `keep`), and how many seconds after the first such file the session is
    killed, as at its limit.
    """
    out.mkdir(parents=True, exist_ok=True)
    plan = {
        **asdict(tree),
        "command": command,
        "limit_s": limit_s,
        "keep": [(keep, str(out.resolve()))],
        "log": str(log.resolve()),
        **_python(environment),
        "kill_after": kill_after and {"below": watched or keep, "pattern": kill_after[0], "after_s": kill_after[1]},
    }
    told = _start(plan, quiet)
    if told["how"] == "broken":
        raise Broken(f"The session could not be built: {told['error']}.")
    return Session(
        told["how"], told["status"], told["seconds"], tuple(json.loads(log.read_text(encoding="utf-8"))), out
    )


def _python(environment: Environment) -> dict:
    return {
        "environment": str(environment.layers[-1]),
        "layers": [str(layer) for layer in environment.layers],
        "shared": environment.shared,
        "base": environment.base,
    }


def _start(plan: dict, quiet: bool) -> dict:
    "Give the plan to inside.py in namespaces; what it wrote as its result. It ends when this process does."
    with tempfile.TemporaryDirectory(prefix="kaggle-sim-") as folder:
        place = Path(folder, "place")
        place.mkdir()
        plan = {**plan, "place": str(place), "result": str(Path(folder, "result.json"))}
        command = [*_namespaces(), sys.executable, "-I", str(INSIDE)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL if quiet else None,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            process.stdin.write(json.dumps(plan).encode() + b"\n")
            process.stdin.flush()
            said = process.stderr.read().decode(errors="replace")
        except BrokenPipeError:
            said = process.stderr.read().decode(errors="replace")
        finally:  # the end of its input ends it, after it has kept what there is
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
            process.stderr.close()
            process.wait()
        result = Path(plan["result"])
        if not result.exists():
            return {"how": "broken", "error": (said.strip().splitlines() or ["it ended without a word"])[-1]}
        return json.loads(result.read_text(encoding="utf-8"))


@functools.cache
def _namespaces() -> tuple[str, ...]:
    "The command that makes the namespaces, by root's rights or by a user's. NotPermitted with why neither works."
    if not sys.platform.startswith("linux"):
        name = {"darwin": "macOS", "win32": "Windows"}.get(sys.platform, sys.platform)
        raise NotPermitted(
            f"{name} has no namespaces, so there is no sealed Kaggle here. Use Linux: a virtual machine, "
            "a container with --privileged, or WSL2."
        )
    if shutil.which("unshare") is None:
        raise NotPermitted(
            "There is no `unshare` here, which makes the namespaces. On Debian and Ubuntu: apt-get install util-linux"
        )
    told = []
    for words in ([UNSHARE] if os.geteuid() == 0 else []) + [(*UNSHARE, "--map-root-user")]:
        done = subprocess.run(
            [*words, sys.executable, "-I", "-c", TRY], capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        if done.returncode == 0:
            return words
        told.append((done.stderr.strip().splitlines() or ["no reason was given"])[-1])
    raise NotPermitted(
        f"This user may not make the namespaces of a sealed session ({told[0]}). Become root, "
        "or allow a user's own namespaces: "
        "`sysctl kernel.unprivileged_userns_clone=1`, on Ubuntu also "
        "`kernel.apparmor_restrict_unprivileged_userns=0`; a container needs --privileged."
    )


# A file system of its own and a /proc of its own: what a container without rights refuses.
TRY = f"""
import sys, tempfile
from pathlib import Path
sys.path.insert(0, {str(INSIDE.parent)!r})
import inside
inside.mount("none", Path("/"), flags=inside.REC | inside.PRIVATE)
inside.tmpfs(Path(tempfile.gettempdir()), 1 << 20)
place = Path(tempfile.mkdtemp())
inside.mount("proc", place, "proc")
inside.loopback()
"""


def why_not() -> str | None:
    "Why no sealed session can be had here; None where it can."
    try:
        _namespaces()
    except NotPermitted as error:
        return str(error)
    return None
