"""What has to run on the Pythons and torches of Kaggle and Colab: `python tools/platforms.py [NAME ...]`.

`make platforms` does it for both. Each environment is made once, outside the tree (`~/.cache/spectrakit/platforms`, or
SPECTRAKIT_PLATFORMS), with the platform's dated versions; torch brings CUDA's libraries, so that one takes 5 to 7 GB
and some minutes. Nothing but the interpreter has to be there: where it is missing, the platform is skipped with a
sentence. On each: the light tests, one run of each launch mode, the story of a notebook's kernel, and the sealed
simulator with the platform's own Python.
"""

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kaggle_sim import environment

root = Path(__file__).resolve().parent.parent
CACHE = Path(
    os.environ.get("SPECTRAKIT_PLATFORMS")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spectrakit" / "platforms"
)
# What the tests need besides, in the platform's version where it has one, else in that of requirements-dev.lock.
FOR_TESTS = (
    "chemotools",
    "detect-secrets",
    "h5py",
    "hydra-core",
    "optuna",
    "pyarrow",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "rich",
    "scikit-learn",
    "tensorboard",
)
# Packages of tests/ whose light tests ask nothing but the kit, torch and Jupyter.
LIGHT = (
    "api",
    "checkpoint",
    "cli",
    "config",
    "data",
    "distributed",
    "jobs",
    "launch",
    "pages",
    "picker",
    "runs",
    "system",
    "tasks",
    "train",
    "tuning",
    "view",
    "watchdog",
)
# How a run may be launched: the settings, and what summary.json then says of the launcher and of the processes.
MODES = {
    "inline": (("launch.mode=inline",), ("inline", 1)),
    "one process": ((), (None, 1)),
    "notebook_launcher": (("trainer.devices=2", "launch.mode=notebook_launcher"), ("notebook_launcher", 2)),
    "torchrun": (("trainer.devices=2", "launch.mode=torchrun"), ("torchrun", 2)),
    "fsdp": (("trainer.devices=2", "distributed.strategy=fsdp"), ("notebook_launcher", 2)),
    "diloco": (("trainer.devices=2", "distributed.strategy=diloco"), ("notebook_launcher", 2)),
}


class Missing(Exception):
    "A sentence: what this machine lacks."


@dataclass(frozen=True)
class Pair:
    "A platform's Python and torch."

    name: str
    python: str  # such as '3.12'
    torch: str  # without the local version: that of the index brings the same CUDA


def pair_of(name: str) -> Pair:
    "The pair of 'kaggle' or 'colab', as the simulator dates it."
    torch = environment.listed(name)[0].get("torch", environment.TORCH[name])
    return Pair(name, environment.PLATFORM_PYTHON[name], torch.partition("+")[0])


def find_python(version: str, home: Path | None = None) -> Path:
    "An interpreter of this version: on the path, or among pyenv's. Missing where there is none that runs."
    kept = (home or Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")) / "versions"
    numbered = sorted(kept.glob(f"{version}.*/bin/python"), key=lambda path: len(str(path)), reverse=True)
    on_path = shutil.which(f"python{version}")
    for python in [*([Path(on_path)] if on_path else []), *numbered]:
        ask = [python, "-c", "import sys, ensurepip; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(ask, capture_output=True, text=True, env=environment.clean_environ(), cwd="/")
        if done.returncode == 0 and done.stdout.strip() == version:
            return python
    raise Missing(f"there is no Python {version} here. Install one: pyenv install {version}")


def locked() -> dict[str, str]:
    "Package → version of requirements-dev.lock."
    text = (root / "requirements-dev.lock").read_text(encoding="utf-8")
    return {environment.plain(name): version for name, version in re.findall(r"^([\w.-]+)==([^\s;+]+)", text, re.M)}


def constraints(pair: Pair) -> str:
    "The versions that pip may take: the platform's, else the lock's; torch brings its own CUDA."
    pins = {**locked(), **environment.listed(pair.name)[0], "torch": pair.torch}
    free = re.compile(r"nvidia-(?!ml-py)|cuda-|triton$")
    return "".join(f"{name}=={v.partition('+')[0]}\n" for name, v in sorted(pins.items()) if not free.match(name))


def requirements(pair: Pair) -> list[str]:
    "What the simulator's session has, pinned, and what the tests need besides."
    common, own = environment.wanted(pair.name)
    return [*common, *own, "antlr4-python3-runtime==4.9.3", *FOR_TESTS]


def built(pair: Pair, cache: Path = CACHE) -> Path:
    "The Python of the pair's environment, made where it is missing while others wait. Missing where it cannot be."
    python = find_python(pair.python)
    full = subprocess.check_output(
        [python, "-c", "import platform; print(platform.python_version())"], text=True
    ).strip()
    folder = cache / f"{pair.name}-python{full}-torch{pair.torch}"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = json.dumps([constraints(pair), requirements(pair)])
    mark = hashlib.sha256(wanted.encode()).hexdigest()
    with open(cache / f"{folder.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ready = folder / "ready"
        if not ready.is_file() or ready.read_text() != mark:
            make(pair, python, folder)
            ready.write_text(mark)
    link(folder)
    return folder / "bin" / "python"


def link(folder: Path) -> None:
    "Let the environment see this tree as the development environment does: the kit is installed, and edited here."
    source = Path(sysconfig.get_path("purelib"))
    for old in environment.site(folder).glob("*spectrakit*"):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    for found in source.glob("*spectrakit*"):
        copy = shutil.copytree if found.is_dir() else shutil.copyfile
        copy(found, environment.site(folder) / found.name)


def make(pair: Pair, python: Path, folder: Path) -> None:
    "Install into `folder`: torch with what it asks for, then the platform's versions, then what the tests need."
    print(f"making {pair.name}'s Python {pair.python} with torch {pair.torch}: once, in {folder}", flush=True)
    environ = environment.clean_environ()
    subprocess.run([python, "-m", "venv", folder], check=True, env=environ)
    with tempfile.TemporaryDirectory() as there:
        limits = Path(there) / "constraints.txt"
        limits.write_text(constraints(pair))
        pip(folder, "-c", str(limits), f"torch=={pair.torch}")
        common, own = environment.wanted(pair.name)
        environment.install(
            folder / "bin" / "python", [*common, *own], [*environment.COMMON, *environment.ONLY[pair.name]]
        )
        pip(folder, "-c", str(limits), "antlr4-python3-runtime==4.9.3", *FOR_TESTS)


def pip(folder: Path, *words: str) -> None:
    "The environment's own pip. Missing with its last words where it fails."
    command = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-compile", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment.clean_environ(), cwd="/")
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["it said nothing"]
        raise Missing(f"pip cannot install {' '.join(words[2:])}: {said[0]}")


# --- what runs on a pair ----------------------------------------------------------------------------------------------


def environ_of(python: Path) -> dict[str, str]:
    "The environment of a process that has the pair's Python and this tree's kit."
    clean = {**environment.clean_environ(), "OMP_NUM_THREADS": "1", "PYTHONNOUSERSITE": "1"}
    return {**clean, "PATH": f"{python.parent}{os.pathsep}{clean['PATH']}", "VIRTUAL_ENV": str(python.parent.parent)}


def call(words: Sequence[str | Path], python: Path, where: Path = root) -> bool:
    "Run a command with the pair's environment; whether it went well."
    return (
        subprocess.run(list(map(str, words)), cwd=where, env=environ_of(python), stdin=subprocess.DEVNULL).returncode
        == 0
    )


def pytest(python: Path, *words: str) -> bool:
    "Tests of this tree with the pair's Python. Its older packages warn of each other, which is no error there."
    plain = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
    plain += ["-W", "ignore::DeprecationWarning"]
    return call([python, *plain, *words], python)


def light(_: Pair, python: Path) -> bool:
    "The light tests."
    return pytest(python, "-m", "not slow and not long", *(f"tests/{name}" for name in LIGHT))


def modes(_: Pair, python: Path) -> bool:
    "One run of each launch mode; each is told, with what its summary says."
    return all([mode(name, python) for name in MODES])


def mode(name: str, python: Path) -> bool:
    "A run in one launch mode: whether it was completed by the launcher and the processes that were asked for."
    words, expected = MODES[name]
    with tempfile.TemporaryDirectory() as folder:
        command = [python, "-m", "spectrakit", "train", f"{root / 'tests' / 'tasks.py'}:Submitting", "run.dir=runs"]
        command += ["trainer.accelerator=cpu", "trainer.max_epochs=2", "data.micro_batch_size=4", *words]
        done = subprocess.run(
            list(map(str, command)), cwd=folder, env=environ_of(python), capture_output=True, text=True
        )
        found = [json.loads(file.read_text()) for file in Path(folder).glob("runs/*/summary.json")]
        summary = found[0] if found else {}
        launch = summary.get("launch", {})
        seen = (launch.get("launcher"), launch.get("world_size"))
        well = done.returncode == 0 and summary.get("status") == "completed" and seen == expected
        print(f"  {name}: {summary.get('status', 'no run')}, launcher {seen[0]}, {seen[1]} process(es)", flush=True)
        if not well:
            print(done.stdout[-2000:], done.stderr[-4000:], sep="\n")
    return well


def kernel(_: Pair, python: Path) -> bool:
    "The story of a notebook's kernel: two ranks train in it, and whatever happens to them."
    return pytest(python, "tests/end_to_end/test_notebook.py", "-k", "todays")


def simulator(pair: Pair, python: Path) -> bool:
    "The sealed simulator, whose sessions have the pair's Python and torch."
    tale = {"kaggle": "story", "colab": "colab-story"}[pair.name]
    out = CACHE / "simulator" / pair.name
    words = [sys.executable, root / "tools" / "kaggle_sim", tale, "--python", python, "--out", out]
    return subprocess.run(list(map(str, words)), cwd=root, stdin=subprocess.DEVNULL).returncode == 0


PARTS: dict[str, Callable[[Pair, Path], bool]] = {
    "light": light,
    "modes": modes,
    "kernel": kernel,
    "simulator": simulator,
}


def versions(python: Path) -> str:
    "What the pair is made of, in one line."
    code = (
        "import platform, importlib.metadata as m\n"
        "names = ('torch', 'accelerate', 'numpy', 'ipykernel', 'ipython', 'ipywidgets')\n"
        "print(f'Python {platform.python_version()}', *(f'{name} {m.version(name)}' for name in names), sep=', ')"
    )
    return subprocess.check_output([python, "-c", code], text=True, env=environ_of(python)).strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="kaggle, colab; none: both")
    parser.add_argument("--only", action="append", choices=PARTS, help="this part; may be repeated; default: all")
    parser.add_argument("--build", action="store_true", help="only make the environments")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - set(environment.ONLY)):
        parser.error(f"there is no platform {unknown[0]!r}. Choose among: {', '.join(environment.ONLY)}")
    failed = []
    for pair in map(pair_of, options.names or environment.ONLY):
        try:
            python = built(pair)
        except (Missing, environment.CannotMake) as error:
            print(f"=== {pair.name}: skipped, {error}", flush=True)
            continue
        print(f"=== {pair.name}: {versions(python)}", flush=True)
        for part in [] if options.build else options.only or PARTS:
            print(f"=== {pair.name}, {part}: {(PARTS[part].__doc__ or '').splitlines()[0]}", flush=True)
            began = time.monotonic()
            well = PARTS[part](pair, python)
            print(
                f"=== {pair.name}, {part}: {'passed' if well else 'FAILED'} in {time.monotonic() - began:.0f} s",
                flush=True,
            )
            failed += [] if well else [f"{pair.name}, {part}"]
    if failed:
        print(f"=== failed: {'; '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
