"""What it costs to read runs: `python bench/reading.py [--json FILE]`, or `--make FOLDER` to keep such runs.

Runs that were never trained are written, with the files of a run that has ended: settings, environment, log, pointers
to a checkpoint of no bytes. A log has a log point each ten steps, and fifty evaluations, each with a checkpoint and a
`budget` event. Then whole processes are timed, from start to end: the commands `runs`, `show`, `compare` and
`report`. The commands take turns.
"""

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from spectrakit.config.compose import compose, snapshot
from spectrakit.runs.events import encode_event

EVERY, EVALUATIONS = 10, 50
ENVIRONMENT = {
    "run_id": "made",
    "platform": {"name": "local", "mode": "script", "gpus": []},
    "versions": {"python": "3.11.9", "torch": "2.6.0"},
    "auto": {f"setting.{i}": f"auto became {i}, for a reason of some forty letters" for i in range(20)},
    "launch": {"launcher": "inline", "world_size": 1},
}


def log_lines(steps: int, every: int) -> Iterator[bytes]:
    "The lines of a log, in order."
    start = {"schema": 1, "task": "coffee", "monitor": "val_loss", "mode": "min", "total_steps": steps}
    yield encode_event(0.0, "start", {**start, "effective_batch_size": 32, "steps_per_epoch": 100, "reasons": {}})
    for step in range(every, steps + 1, every):
        t, loss = round(step / 50, 4), 0.01 + math.exp(-step / steps * 5) * (1 + 0.1 * math.sin(step))
        yield (
            f'{{"t": {t}, "type": "step", "step": {step}, "epoch": {step / 100}, "loss": {loss!r}, "lr": 0.001, '
            f'"samples_per_s": {1600 + step % 7}.25, "gpu_gib": null}}\n'
        ).encode()
        if step % (steps // EVALUATIONS) == 0:
            metrics = {"val_loss": loss * 1.1, "val_accuracy": 1 - loss / 2, "val_mae": loss}
            yield encode_event(t, "eval", {"step": step, "epoch": step / 100, "metrics": metrics, "best": True})
            yield encode_event(t, "checkpoint", {"step": step, "path": f"checkpoints/step-{step:08d}", "bytes": 9})
            yield encode_event(t, "budget", {"left_s": 9000.0, "reserve_s": 60.0, "told": None, "held": None})
    end = {"status": "completed", "reason": "all steps are done", "step": steps, "monitor": "val_loss"}
    yield encode_event(steps / 50 + 1, "end", end)


def write_runs(folder: Path, count: int, steps: int, every: int = EVERY) -> Path:
    "Make `count` runs of `steps` steps in `folder`, all alike; returns the folder."
    first = folder / "made-0000"
    (first / "checkpoints").mkdir(parents=True)
    (first / "config.yaml").write_text(snapshot(compose()))
    (first / "environment.json").write_text(json.dumps(ENVIRONMENT, indent=1))
    (first / "lock").touch()
    for which in ("LATEST", "BEST"):
        (first / "checkpoints" / which).write_text(f"step-{steps:08d}\n")
    with open(first / "events.jsonl", "wb") as log:
        log.writelines(log_lines(steps, every))
    for number in range(1, count):
        run = folder / f"made-{number:04d}"
        shutil.copytree(first, run)
        os.utime(run / "config.yaml", (1e9 + number, 1e9 + number))
    return folder


def took(arguments: list[str]) -> tuple[float, float, float]:
    "Seconds, seconds of the processor, and the largest resident MB, of a fresh interpreter."
    began = time.perf_counter()
    child = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(arguments)} ended with {status}")
    return time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def commands_for(folder: Path) -> dict[str, list[str]]:
    "What is timed, by name; makes the runs."
    kit, commands = ["-m", "spectrakit"], {}
    for count in (10, 100, 1000):
        made = write_runs(folder / f"list-{count}", count, 5000)
        commands[f"runs: {count} of 5,000 steps"] = [*kit, "runs", str(made)]
    for steps, every in ((10**5, EVERY), (10**6, EVERY), (10**6, 1)):
        name = f"{steps:,} steps, a log point each {every}"
        one, two = sorted(write_runs(folder / f"long-{steps}-{every}", 2, steps, every).iterdir())
        commands[f"show: {name}"] = [*kit, "show", str(one)]
        commands[f"report: {name}"] = [*kit, "report", str(one), "--out", str(folder / "report.html")]
        commands[f"compare two: {name}"] = [*kit, "compare", str(one), str(two), "--out", str(folder / "two.html")]
    return commands


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each command (3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument("--make", type=Path, metavar="FOLDER", help="write 1,000 runs of 5,000 steps there, and end")
    options = parser.parse_args()
    if options.make:
        write_runs(options.make, 1000, 5000)
        return
    taken: dict[str, list[tuple]] = {}
    with tempfile.TemporaryDirectory() as name:
        commands = commands_for(Path(name))
        for _ in range(options.rounds):
            for command, arguments in commands.items():
                taken.setdefault(command, []).append(took(arguments))
    results = {}
    print(f"whole processes, {options.rounds} runs of each in turn, medians\n")
    print(f"{'':50} {'seconds':>8} {'CPU s':>8} {'MB':>6}")
    for command, rows in taken.items():
        seconds, cpu, megabytes = (statistics.median(column) for column in zip(*rows, strict=True))
        results[command] = {"seconds": seconds, "cpu_s": cpu, "mb": megabytes}
        print(f"{command:50} {seconds:8.2f} {cpu:8.2f} {megabytes:6.0f}")
    if options.json:
        options.json.write_text(json.dumps({"rounds": options.rounds, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
