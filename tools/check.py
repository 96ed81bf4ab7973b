"""Every check, cheapest first, stopping at the first that fails: `python tools/check.py [--fast]`, or `make test`.
Both halves of pytest are run in any case.

`--fast` leaves out what is slow: pytest tests with `@pytest.mark.slow`, notebook cells with `#| slow`, and the
notebooks that train whole models (the tutorials and the examples).
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

root = Path(__file__).resolve().parent.parent
# These hold runs to a clock, or listen to a kernel or a browser: what else a machine does must not be another test.
ALONE = [
    f"tests/{name}.py"
    for name in (
        "end_to_end/test_browser",
        "end_to_end/test_faults",
        "end_to_end/test_kaggle_sim",
        "end_to_end/test_nodes",
        "end_to_end/test_notebook",
        "runs/test_resume_source",
        "view/test_live",
        "watchdog/test_watchdog",
    )
]


def steps(fast: bool) -> list[tuple[str, list[str]]]:
    "Heading and command of each step, in order."
    workers = min(4, os.cpu_count() or 1)
    # nbdev's functions look at the command line only where they were started as a script: say it in Python
    arguments = f"flags={'' if fast else 'slow'!r}, n_workers={workers}, timing=True"
    # these train whole models, a minute each
    if fast:
        arguments += ", skip_folder_re='^[_.]|tutorials', skip_file_re='^[_.]|builtin'"
    pytest = ["-m", "pytest", "--durations=12", "--durations-min=15", *(["-m", "not slow"] if fast else [])]
    notebooks = f"from nbdev.test import nbdev_test; nbdev_test({arguments})"
    source = ["nbs", "tests", "tools", "bench", "kaggle"]
    return [
        ("ruff format", ["-m", "ruff", "format", "--check", "--quiet", *source]),
        ("ruff check", ["-m", "ruff", "check", *source]),
        ("mypy", ["-m", "mypy"]),
        ("notebooks, modules and README agree", ["tools/sync.py"]),
        ("the cells of the notebooks", ["-c", notebooks]),
        (
            "pytest, several files at a time",
            [*pytest, "-n", str(workers), "--dist", "loadfile", *(f"--ignore={file}" for file in ALONE)],
        ),
        ("pytest, one by one", [*pytest, *ALONE]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="leave out what is marked slow")
    todo, failed = steps(parser.parse_args().fast), []
    for number, (heading, command) in enumerate(todo, 1):
        print(f"\n=== {number}/{len(todo)}: {heading}", flush=True)
        began = time.monotonic()
        status = subprocess.run([sys.executable, *command], cwd=root).returncode
        if not status and number < len(todo):
            print(
                f"=== passed in {time.monotonic() - began:.0f} s", flush=True
            )  # pytest's own closing line stays the last one
        elif status and "pytest" in command:
            failed.append(heading)
        elif status:
            sys.exit(f"=== {number}/{len(todo)} failed: {heading}")
    if failed:
        sys.exit(f"=== failed: {' and '.join(failed)}")


if __name__ == "__main__":
    main()
