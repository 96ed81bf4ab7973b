"""What it costs to start, beside an empty process and `import accelerate`: `python bench/imports.py [--json FILE]`.

The commands take turns, A B C A B C …, so that a slow moment of the machine meets them all. The times are wall-clock
seconds from the start of a process to its end. Exits with 1 where a command of spectrakit has loaded torch.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = {
    "python -c pass": ("-c", "pass"),
    "import spectrakit": ("-c", "import spectrakit"),
    "Task, compose, fit": ("-c", "from spectrakit import Task, compose, fit"),
    "spectrakit --help": ("-m", "spectrakit", "--help"),
    "spectrakit info": ("-m", "spectrakit", "info"),
    "spectrakit profiles": ("-m", "spectrakit", "profiles"),
    "yaml and one composition": ("-c", "import yaml, spectrakit; spectrakit.compose()"),
    "import accelerate": ("-c", "import accelerate"),
}
EMPTY, HEAVY = "python -c pass", "import accelerate"


def took_s(arguments: tuple[str, ...]) -> float:
    "Seconds that a fresh interpreter lives."
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def modules_of(arguments: tuple[str, ...]) -> set[str]:
    "The modules that a fresh interpreter imports, as `-X importtime` lists them."
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(re.findall(r"^import time:\s+\d+ \|\s+\d+ \|\s+(\S+)$", done.stderr, re.M))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="runs of each command (7)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds needs a number from 1 up")
    modules = {name: modules_of(arguments) for name, arguments in COMMANDS.items()}  # also warms the file cache
    if "torch" not in modules[HEAVY]:
        raise SystemExit(f"{HEAVY} was not seen to load torch: the others prove nothing.")
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(options.rounds):
        for name, arguments in COMMANDS.items():
            times[name].append(took_s(arguments))
    results = {}
    print(f"whole processes, {options.rounds} runs of each in turn, Python {sys.version.split()[0]}\n")
    print(f"{'':24} {'median':>9} {'least':>9}   {'× empty':>8} {'× accelerate':>13}   {'modules':>7}  torch")
    for name, mine in times.items():
        # each round is its own comparison: its commands ran within moments of each other
        empty, heavy = (
            statistics.median(a / b for a, b in zip(mine, times[other], strict=False)) for other in (EMPTY, HEAVY)
        )
        median, least, loaded = statistics.median(mine), min(mine), "torch" in modules[name]
        results[name] = {
            "median_s": median,
            "least_s": least,
            "ratio_to_empty": empty,
            "ratio_to_accelerate": heavy,
            "modules": len(modules[name]),
            "torch": loaded,
        }
        print(
            f"{name:24} {median * 1e3:6.1f} ms {least * 1e3:6.1f} ms   {empty:8.2f} {heavy:13.3f}   "
            f"{len(modules[name]):7}  {'loaded' if loaded else 'no'}"
        )
    if options.json:
        content = {"unit": "seconds", "rounds": options.rounds, "python": sys.version.split()[0], "results": results}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    bad = [name for name in COMMANDS if name != HEAVY and results[name]["torch"]]
    if bad:
        raise SystemExit(f"\nThese load torch and must not: {', '.join(bad)}.")


if __name__ == "__main__":
    main()
