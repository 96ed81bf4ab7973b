"""Every check, cheapest first: `python tools/check.py [--fast | --all]`; `make test` and its sisters do.

What fails among format, lint, types and notebooks in step ends it; both halves of pytest, which also run the cells of
the notebooks, are run in any case.

`--fast` leaves out what is slow: pytest tests with `@pytest.mark.slow`, notebook cells with `#| slow`, and all but one
notebook of each package (`QUICK` in tests/test_cells.py). `--all` adds `@pytest.mark.long`: every combination
of what `make test` samples.
"""

import argparse
import compileall
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

root = Path(__file__).resolve().parent.parent
LAST_FAILED = root / ".pytest_cache/v/cache/lastfailed"
TIMES = root / ".pytest_cache/times.xml"
# These hold runs to a clock of seconds and mostly wait: two at a time, with nothing else beside them.
ALONE = [
    f"tests/{name}"
    for name in (
        "end_to_end/test_faults.py::test_it_returns_in_time_when",
        "runs/test_resume_plan.py::test_sessions_that_end_by_the_clock",
        "tuning/test_search.py::test_the_clock_cuts_a_trial_and_the_next_session_goes_on_with_it",
        "watchdog/test_watchdog.py::test_a_training_that_hangs_is_ended_from_outside_and_predicted_in_time",
        "watchdog/test_watchdog.py::test_without_a_checkpoint_a_training_that_hangs_has_failed_in_time",
    )
]


SOURCE = ["nbs", "spectrakit", "tests", "tools", "bench", "kaggle"]  # of spectrakit what nbdev does not write
# Heading and command, which run side by side. No --num-workers: on a busy machine mypy 2.4 loses its workers.
TOGETHER = [
    ("ruff format", ["-m", "ruff", "format", "--check", "--quiet", *SOURCE]),
    ("ruff check", ["-m", "ruff", "check", *SOURCE]),
    ("mypy", ["-m", "mypy"]),
    ("notebooks, modules and README agree", ["tools/sync.py"]),
]


def tests(left_out: str) -> list[tuple[str, list[str]]]:
    "Heading and command of the two halves of pytest; `left_out`: an expression of marks."
    pytest = ["-m", "pytest", "--durations=30", "--durations-min=5", f"--junitxml={TIMES}"]
    pytest += ["-m", left_out] if left_out else []
    by_file = ["--dist", "loadfile", "--no-loadscope-reorder"]
    # one more than there are cores: much of what is tested waits for another process
    workers = ["-n", str(min(4, 1 + (os.cpu_count() or 1))), *by_file]
    return [
        ("pytest and the cells of the notebooks", [*pytest, *workers, *(f"--deselect={name}" for name in ALONE)]),
        ("pytest of what is held to a clock", [*pytest, "-n", "2", *by_file, *ALONE]),
    ]


def environment() -> dict[str, str]:
    """The environment of pytest, which keeps its own bytecode: without it each worker rewrites all asserts each time.

    Processes that tests start find the kit's, compiled here once: many images are told not to write any.
    """
    for folder in ("spectrakit", "tests"):
        compileall.compile_dir(root / folder, quiet=2)
    # The cache of fonts: several processes would make it at once, which takes each seconds, and each says so on stderr.
    subprocess.run([sys.executable, "-c", "import matplotlib.font_manager"], capture_output=True, check=False)
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def run_together() -> list[str]:
    "Run the quick checks side by side, print what each says, and return the headings of those that failed."
    started = [
        subprocess.Popen(
            [sys.executable, *command], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for _, command in TOGETHER
    ]
    failed = []
    for (heading, _), process in zip(TOGETHER, started, strict=True):
        said = process.communicate()[0].strip()
        print(f"=== {heading}: {f'failed ({process.returncode})' if process.returncode else 'passed'}", flush=True)
        if said:
            print(said, flush=True)
        if process.returncode:
            failed.append(heading)
    return failed


def slowest_files() -> str:
    "Return the thirty files of tests that took longest, and their seconds."
    seconds: Counter[str] = Counter()
    for test in ElementTree.parse(TIMES).iter("testcase"):
        seconds[test.attrib["classname"]] += float(test.attrib["time"])
    return " · ".join(f"{name.removeprefix('tests.')} {total:.0f}" for name, total in seconds.most_common(30))


def failed_tests() -> list[str]:
    "Return the names of the tests that failed in both halves; pytest keeps them in its cache."
    return sorted(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--fast", action="store_true", help="leave out what is marked slow")
    which.add_argument("--all", action="store_true", help="with what is marked long")
    asked = parser.parse_args()
    began = time.monotonic()
    if failed := run_together():
        sys.exit(f"=== failed: {' and '.join(failed)}")
    print(f"=== passed in {time.monotonic() - began:.0f} s", flush=True)
    todo = tests("not slow and not long" if asked.fast else "" if asked.all else "not long")
    if asked.fast:
        todo = todo[:1]  # what is held to a clock is slow
    variables = environment()
    LAST_FAILED.unlink(missing_ok=True)
    TIMES.unlink(missing_ok=True)
    for number, (heading, command) in enumerate(todo, 1):
        print(f"\n=== {number}/{len(todo)}: {heading}", flush=True)
        began = time.monotonic()
        if subprocess.run([sys.executable, *command], cwd=root, env=variables).returncode:
            failed.append(heading)
        if number < len(todo):  # pytest's own closing line stays the last one
            print(f"=== {'failed' if failed else 'passed'} in {time.monotonic() - began:.0f} s", flush=True)
            if TIMES.exists():
                print(f"=== seconds of the slowest files: {slowest_files()}", flush=True)
    if failed:  # logs are cut from above: the names come last
        print("\n".join(["", *failed_tests()]), flush=True)
        sys.exit(f"=== failed: {' and '.join(failed)}")


if __name__ == "__main__":
    main()
