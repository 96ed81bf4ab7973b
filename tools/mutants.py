"""What counts is guarded: each named behaviour is broken in a copy of the tree, and the nearest tests have to notice.

`python tools/mutants.py [WORD…] [--jobs N] [--list]`, or `make mutants`: the rows of `mutants.toml` whose name holds
one of the words, or all. A mutant is killed where an assertion of its tests fails. It has survived where they pass; it
is broken where they end otherwise, such as by an import error or after a minute. Exit status 1 unless all are killed.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

root = Path(__file__).resolve().parent.parent
TABLE = root / "tools" / "mutants.toml"
LIMIT_S = 60
COPIED = ("spectrakit", "tests", "tools", "pyproject.toml", "settings.ini")
# imported once, by the process that all test runs are forked from: what takes seconds, and nothing of this project
HEAVY = ("torch", "torch.utils.data", "accelerate", "safetensors.torch", "omegaconf", "numpy", "pytest")


@dataclass(frozen=True)
class Mutant:
    "One behaviour: the text that makes it, what breaks it, and the tests that notice."

    name: str
    file: str  # below spectrakit/
    old: str
    new: str
    tests: tuple[str, ...]  # as pytest takes them, below tests/


def read_table(path: Path = TABLE) -> list[Mutant]:
    "The mutants in the order of the table."
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**{**row, "tests": tuple(row["tests"])}) for row in rows]


def mutated(mutant: Mutant, text: str) -> str:
    "The module's text with the behaviour broken. ValueError where the table no longer fits the code."
    if (times := text.count(mutant.old)) != 1:
        raise ValueError(f"{mutant.name}: {mutant.file} holds {times} times, and not once: {mutant.old!r}")
    return text.replace(mutant.old, mutant.new)


def copy_tree(target: Path) -> None:
    "What the tests need, without what was built."
    for name in COPIED:
        if (root / name).is_dir():
            shutil.copytree(root / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(root / name, target / name)


def break_copy(mutant: Mutant, folder: Path) -> None:
    "Put a copy of the tree with the mutant into `folder`."
    copy_tree(folder)
    module = folder / "spectrakit" / mutant.file
    module.write_text(mutated(mutant, module.read_text(encoding="utf-8")), encoding="utf-8")


class Failures:
    "A plugin of pytest that notes by what tests failed, and how many were run."

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.tests = 0

    def pytest_runtest_makereport(self, item: object, call: object) -> None:
        self.tests += call.when == "call"
        if call.excinfo is not None:
            self.kinds.append(call.excinfo.typename)


def run_tests(folder: Path, tests: Iterable[str]) -> None:
    """In a forked process: run `tests` of the copy in `folder`, and leave result.json there. It does not return.

    The tests of the table stay in their process: a Python that they start would find the package that is installed.
    """
    import pytest

    os.setsid()
    output = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1), os.dup2(output, 2)
    os.chdir(folder)
    sys.path[0] = str(folder)
    sys.dont_write_bytecode = True
    failures = Failures()
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    status = pytest.main([*options, *(f"tests/{test}" for test in tests)], plugins=[failures])
    import spectrakit

    result = {"status": int(status), "kinds": failures.kinds, "tests": failures.tests, "of": spectrakit.__file__}
    (folder / "result.json").write_text(json.dumps(result))
    os._exit(0)


def last_line(folder: Path) -> str:
    "The last that the tests have printed."
    return " ".join((folder / "output.txt").read_text(errors="replace").strip().splitlines()[-1:])


def outcome(folder: Path) -> str:
    "'killed', 'survived' or 'broken: why'."
    try:
        found = json.loads((folder / "result.json").read_text())
    except FileNotFoundError:
        return f"broken: its tests took more than {LIMIT_S} s, or their process died: {last_line(folder)}"
    if not Path(found["of"]).is_relative_to(folder):
        return f"broken: the tests have used {found['of']}"
    if found["status"] == 0 and found["tests"]:
        return "survived"
    # an exception that `pytest.raises` waited for in vain is `Failed`
    if found["status"] == 1 and found["kinds"] and found["kinds"][-1] in ("AssertionError", "Failed"):
        return "killed"
    return f"broken: {', '.join(found['kinds'])} {last_line(folder)}"


def run_all(mutants: Iterable[Mutant], jobs: int, scratch: Path) -> Iterator[tuple[Mutant, str, float]]:
    "Each mutant with its outcome and its seconds, as they come; `jobs` at a time."
    waiting, running = list(mutants)[::-1], {}
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant = waiting.pop()
            folder = scratch / str(len(waiting))
            folder.mkdir()
            try:
                break_copy(mutant, folder)
            except ValueError as error:
                yield mutant, f"broken: {error}", 0.0
                continue
            sys.stdout.flush()
            if not (pid := os.fork()):
                try:
                    run_tests(folder, mutant.tests)
                except BaseException:
                    traceback.print_exc()  # into output.txt
                finally:
                    os._exit(1)
            running[pid] = mutant, folder, time.monotonic()
        for pid, (mutant, folder, began) in list(running.items()):
            took = time.monotonic() - began
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                if took > LIMIT_S:
                    os.killpg(pid, signal.SIGKILL)
                continue
            del running[pid]
            yield mutant, outcome(folder), took
            shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only mutants whose name holds one of these")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1), help="how many at a time")
    parser.add_argument("--list", action="store_true", help="show the table and run nothing")
    arguments = parser.parse_args()
    chosen = [m for m in read_table() if not arguments.words or any(word in m.name for word in arguments.words)]
    if arguments.list:
        print("\n".join(f"{mutant.name:<60} {mutant.file}" for mutant in chosen))
        return
    for name in HEAVY:
        import_module(name)
    killed = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        for mutant, became, took in run_all(chosen, arguments.jobs, Path(scratch).resolve()):
            print(f"{mutant.name:<60} {became} ({took:.0f} s)", flush=True)
            killed += became == "killed"
    print(f"{killed} of {len(chosen)} mutants killed")
    sys.exit(killed != len(chosen))


if __name__ == "__main__":
    main()
