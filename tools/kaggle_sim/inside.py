"""Process 1 of a sealed session: reads its plan from standard input, builds the file tree, runs the commands, ends with
them.

Started by sealed.py in new mount, network, process, host name and IPC namespaces. Standard library only. When this
process ends, the kernel ends everything that was started here; when whoever started it goes away, standard input ends,
and so does this.
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import math
import os
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, NOATIME, BIND, REC, PRIVATE = 1, 2, 4, 8, 32, 1024, 4096, 16384, 1 << 18
KEPT = {
    os.ST_NOSUID: NOSUID,
    os.ST_NODEV: NODEV,
    os.ST_NOEXEC: NOEXEC,
    os.ST_NOATIME: NOATIME,
}  # which a remount may not drop
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
ETC = (
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "alternatives",
    "localtime",
    "ssl",
    "ca-certificates",
    "fonts",
    "mime.types",
    "protocols",
    "services",
)
libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: Path, kind: str = "", flags: int = 0, options: str = "") -> None:
    "mount(2). OSError with what was to be mounted where it is refused."
    words = [text.encode() if text else None for text in (source, str(target), kind)]
    if libc.mount(*words, ctypes.c_ulong(flags), options.encode() or None):
        number = ctypes.get_errno()
        raise OSError(number, f"cannot mount {source or kind}: {os.strerror(number)}", str(target))


def tmpfs(target: Path, size_bytes: int, mode: int = 0o755) -> None:
    target.mkdir(parents=True, exist_ok=True)
    mount("tmpfs", target, "tmpfs", options=f"size={size_bytes},mode={mode:o}")


def read_only(target: Path) -> None:
    about = os.statvfs(target).f_flag
    mount("", target, flags=REMOUNT | BIND | RDONLY | sum(flag for told, flag in KEPT.items() if about & told))


def bind(source: str, target: Path, writable: bool = False, deep: bool = False) -> None:
    "Let `source` be seen at `target`, which is made where it is missing."
    target.parent.mkdir(parents=True, exist_ok=True)
    if os.path.isdir(source):
        target.mkdir(exist_ok=True)
    else:
        target.touch()
    mount(source, target, flags=BIND | (REC if deep else 0))
    if not writable:
        read_only(target)


# --- the file tree ---


def system(root: Path) -> None:
    "The machine's programs and libraries, read-only; devices, /proc and /tmp of the session's own; nothing else."
    for name in ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            (root / name).symlink_to(os.readlink(path))
        elif path.is_dir():
            bind(str(path), root / name)
    for name in ETC:
        if os.path.exists(f"/etc/{name}"):
            bind(f"/etc/{name}", root / "etc" / name)
    texts = {
        "passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
        "group": "root:x:0:\nnogroup:x:65534:\n",
        "hosts": f"127.0.0.1 localhost {socket.gethostname()}\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    }
    for name, text in texts.items():
        (root / "etc" / name).write_text(text)
    for name in ("proc", "sys", "root", "run", "opt", "var/tmp", "mnt"):
        (root / name).mkdir(parents=True, exist_ok=True)
    mount("proc", root / "proc", "proc", NOSUID | NODEV | NOEXEC)
    bind("/sys", root / "sys", writable=True, deep=True)  # the control groups tell how many cores there are


def devices(root: Path, gpus: bool) -> None:
    tmpfs(root / "dev", 1 << 20)
    here = [f"/dev/{name}" for name in DEVICES] + [
        str(path) for path in Path("/dev").glob("nvidia*") if gpus and not path.is_dir()
    ]
    for path in here:
        bind(path, root / path.lstrip("/"), writable=True)
    for name, number in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        (root / "dev" / name).symlink_to(f"/proc/self/fd{number}")
    tmpfs(root / "dev" / "shm", 1 << 30, 0o1777)


def python(root: Path, plan: dict, layers: Path) -> None:
    "The environment where it lies, writable for this session only, and behind it what it takes from another."
    if plan["base"]:
        bind(plan["base"], root / plan["base"].lstrip("/"))
    place = root / plan["environment"].lstrip("/")
    place.mkdir(parents=True)
    (layers / "upper").mkdir()
    (layers / "work").mkdir()
    lower = ":".join(plan["layers"])
    for more in ("", ",userxattr"):  # the second is for namespaces of a user
        try:
            mount(
                "overlay",
                place,
                "overlay",
                options=f"lowerdir={lower},upperdir={layers / 'upper'},workdir={layers / 'work'}{more}",
            )
            break
        except OSError:
            pass
    else:  # a kernel without overlays
        for layer in reversed(plan["layers"]):
            shutil.copytree(layer, place, symlinks=True, dirs_exist_ok=True)
    for source, target in plan["shared"]:
        bind(source, root / target.lstrip("/"))


def loopback() -> None:
    "Bring up `lo`, the only network card there is."
    with socket.socket() as any_socket:
        request = struct.pack("16sh14x", b"lo", 1)  # IFF_UP
        fcntl.ioctl(any_socket, 0x8914, request)  # SIOCSIFFLAGS


def build(plan: dict) -> Path:
    "Everything that the session sees; returns its root."
    mount("none", Path("/"), flags=REC | PRIVATE)
    socket.sethostname(plan["hostname"])
    loopback()
    base = Path(plan["place"])
    tmpfs(base, plan["memory_bytes"])
    root = base / "root"
    root.mkdir()
    system(root)
    devices(root, plan["gpus"])
    tmpfs(root / "tmp", plan["memory_bytes"], 0o1777)
    python(root, plan, base)
    for target, size_bytes in plan["disks"]:
        tmpfs(root / target.lstrip("/"), size_bytes)
    for source, target, writable in plan["binds"]:
        bind(source, root / target.lstrip("/"), writable)
    for target, (text, mode) in plan["files"].items():
        path = root / target.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
    for target in plan["sealed"]:
        read_only(root / target.lstrip("/"))
    return root


# --- the session ---


class Log:
    """What the session said, with its second, as Kaggle's log has it: a JSON list, one entry a line; and as text for
    who looks on.
    """

    def __init__(self, path: str, began_s: float):
        self.file = open(path, "w", encoding="utf-8")  # noqa: SIM115  close() closes it, at the end of the session
        self.began_s, self.first, self.rest = began_s, True, {}
        self.file.write("[")

    def take(self, name: str, data: bytes) -> None:
        "Whole lines are written, the rest waits for its end."
        *lines, self.rest[name] = (self.rest.get(name, b"") + data).split(b"\n")
        for line in lines:
            self.write(name, line + b"\n")

    def write(self, name: str, line: bytes) -> None:
        text, at_s = line.decode(errors="replace"), time.monotonic() - self.began_s
        self.file.write(
            ("" if self.first else ",") + json.dumps({"stream_name": name, "time": round(at_s, 3), "data": text}) + "\n"
        )
        self.file.flush()
        self.first = False
        with contextlib.suppress(OSError):  # nobody looks on any more
            print(f"{at_s:7.1f}s {text}", end="" if text.endswith("\n") else "\n", flush=True)

    def close(self) -> None:
        for name, line in self.rest.items():
            if line:
                self.write(name, line)
        self.file.write("]\n")
        self.file.close()


def start(words: list[str], root: Path, plan: dict, **streams: int) -> subprocess.Popen:
    "A command in the session's tree."

    def enter() -> None:
        os.chroot(root)
        os.chdir(plan["cwd"])
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)

    return subprocess.Popen(
        words, preexec_fn=enter, env=plan["environ"], stdin=subprocess.DEVNULL, start_new_session=True, **streams
    )


def reap(pid: int) -> int | None:
    "Bury whoever has died, also orphans, as process 1 must; the exit status of `pid` where it is among them."
    status = None
    while True:
        try:
            dead, code = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if not dead:
            return status
        if dead == pid:
            status = os.waitstatus_to_exitcode(code)


def end_all() -> None:
    "Kill every process but this one, and wait until they are gone."
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def there(folder: Path, pattern: str) -> bool:
    "Whether a file matches; not where a folder vanishes while it is looked into."
    try:
        return any(folder.glob(pattern))
    except FileNotFoundError:
        return False


def follow(root: Path, plan: dict, log: Log) -> tuple[str, int | None]:
    "Run the command to its end, or to the session's: how it ended, and its exit status."
    process = start(plan["command"], root, plan, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    how, status, marked_s, kill = "", None, math.inf, plan["kill_after"]
    with selectors.DefaultSelector() as ready:
        for name in ("stdout", "stderr"):
            ready.register(getattr(process, name), selectors.EVENT_READ, name)
        ready.register(0, selectors.EVENT_READ, None)
        while not how:
            for key, _ in ready.select(0.05):
                data = os.read(key.fd, 1 << 16)
                if data and key.data:
                    log.take(key.data, data)
                elif key.data:
                    ready.unregister(key.fileobj)
                elif not data:
                    how = "abandoned"
            status, now = reap(process.pid), time.monotonic()
            if kill and marked_s == math.inf and there(root / kill["below"].lstrip("/"), kill["pattern"]):
                marked_s = now + kill["after_s"]
            if status is not None:
                how = "ended"
            elif now >= min(marked_s, log.began_s + plan["limit_s"]):
                how = "limit"
        end_all()  # so the pipes have an end
        for key in [key for key in ready.get_map().values() if key.data]:
            while data := os.read(key.fd, 1 << 16):
                log.take(key.data, data)
    process.returncode = status
    return how, status


def session(plan: dict) -> dict:
    "The whole session; what became of it."
    root = build(plan)
    for words in plan["before"]:
        prepare(words, root, plan)
    began_s = time.monotonic()
    log = Log(plan["log"], began_s)
    how, status = follow(root, plan, log)
    seconds = time.monotonic() - began_s
    log.close()
    for source, target in plan["keep"]:
        shutil.copytree(root / source.lstrip("/"), target, symlinks=True, dirs_exist_ok=True)
    return {"how": how, "status": status, "seconds": round(seconds, 1)}


def prepare(words: list[str], root: Path, plan: dict) -> None:
    "A command before the session's clock starts, which must go well."
    process = start(words, root, plan, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = process.communicate()[0].decode(errors="replace")
    if process.returncode:
        raise OSError(errno.ECANCELED, f"{' '.join(words)} failed: {said.strip()}")


def main() -> None:
    plan = json.loads(sys.stdin.buffer.raw.readline())
    try:
        result = session(plan) if "command" in plan else {"how": "tried", "seen": build(plan).is_dir()}
    except OSError as error:
        result = {
            "how": "broken",
            "error": f"{error.strerror}: {error.filename}" if error.filename else f"{error.strerror}",
        }
    Path(plan["result"]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
