"""Writes folders of runs that were never trained, for what reads them: `python bench/made_runs.py FOLDER --runs 1000`.

The files are those of a run that has ended: settings, environment, log, summary, one checkpoint of a few bytes and the
pointers to it. The log is as `fit` writes it: a log point each `--every` steps, an evaluation each `--evaluations`-th
part of the run, with a message and a `budget` event between them.
"""

import argparse
import json
import math
import os
from pathlib import Path

import spectrakit as sk
from spectrakit.config.compose import snapshot
from spectrakit.runs.events import encode_event

ENVIRONMENT = {
    "run_id": "made",
    "platform": {"name": "local", "mode": "script", "gpus": []},
    "versions": {"python": "3.11.9", "torch": "2.6.0"},
    "git_commit": None,
    "auto": {f"setting.{i}": f"auto became {i}, for a reason of some forty letters" for i in range(20)},
    "launch": {"launcher": "inline", "world_size": 1},
}


def log_lines(steps: int, every: int, evaluations: int):
    "The lines of a log, in order."
    start = {"schema": 1, "task": "coffee", "monitor": "val_loss", "mode": "min", "total_steps": steps}
    yield encode_event(0.0, "start", {**start, "effective_batch_size": 32, "steps_per_epoch": 100, "reasons": {}})
    apart = max(1, steps // evaluations)
    for step in range(every, steps + 1, every):
        t, loss = round(step / 50, 4), 0.01 + math.exp(-step / steps * 5) * (1 + 0.1 * math.sin(step))
        yield (
            f'{{"t": {t}, "type": "step", "step": {step}, "epoch": {step / 100}, "loss": {loss!r}, "lr": 0.001, '
            f'"samples_per_s": {1600 + step % 7}.25, "gpu_gib": null}}\n'
        ).encode()
        if step % apart < every:
            metrics = {"val_loss": loss * 1.1, "val_accuracy": 1 - loss / 2, "val_mae": loss}
            yield encode_event(
                t, "eval", {"step": step, "epoch": step / 100, "metrics": metrics, "best": True, "seconds": 0.5}
            )
            yield encode_event(
                t, "checkpoint", {"step": step, "path": f"checkpoints/step-{step:08d}", "bytes": 9, "seconds": 0.1}
            )
            yield encode_event(t, "budget", {"left_s": 9000.0, "reserve_s": 60.0, "told": None, "held": None})
    end = {
        "status": "completed",
        "reason": "all steps are done",
        "step": steps,
        "metrics": {"val_loss": 0.01},
        "monitor": "val_loss",
    }
    yield encode_event(steps / 50 + 1, "end", end)


def best_step(steps: int, every: int, evaluations: int) -> int:
    "The step of the last evaluation, which is the best."
    apart = max(1, steps // evaluations)
    return max(step for step in range(every, steps + 1, every) if step % apart < every)


def write_run(folder: Path, steps: int, every: int = 10, evaluations: int = 50) -> Path:
    "Make the run `folder`, of so many `steps`, with a log point each `every` steps and so many `evaluations`."
    best = f"step-{best_step(steps, every, evaluations):08d}"
    (folder / "checkpoints" / best).mkdir(parents=True)
    (folder / "config.yaml").write_text(snapshot(sk.compose()))
    (folder / "environment.json").write_text(json.dumps(ENVIRONMENT, indent=1))
    with open(folder / "events.jsonl", "wb") as log:
        log.writelines(log_lines(steps, every, evaluations))
    (folder / "lock").touch()
    for which in ("LATEST", "BEST"):
        (folder / "checkpoints" / which).write_text(best + "\n")
    (folder / "summary.json").write_text(json.dumps({"status": "completed"}))
    return folder


def write_runs(folder: Path, count: int, steps: int, every: int = 10, evaluations: int = 50) -> None:
    "Make `count` runs of equal contents in `folder`; all but the first are copies of its files."
    first = write_run(folder / "made-0000", steps, every, evaluations)
    files = [(file.relative_to(first), file.read_bytes()) for file in first.rglob("*") if file.is_file()]
    for number in range(1, count):
        for name, data in files:
            file = folder / f"made-{number:04d}" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        os.utime(folder / f"made-{number:04d}" / "config.yaml", (1e9 + number, 1e9 + number))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/made_runs"), help="build/made_runs")
    parser.add_argument("--runs", type=int, default=1000, help="how many (1000)")
    parser.add_argument("--steps", type=int, default=5000, help="optimizer steps of each (5000)")
    parser.add_argument("--every", type=int, default=10, help="steps between two log points (10)")
    parser.add_argument("--evaluations", type=int, default=50, help="evaluations of each (50)")
    options = parser.parse_args()
    write_runs(options.folder, options.runs, options.steps, options.every, options.evaluations)


if __name__ == "__main__":
    main()
