"""Folders of runs made by hand: as a run leaves them, and with everything in them that nobody wants to find there."""

import json
from pathlib import Path
from typing import Any

from spectrakit.config.compose import compose, snapshot

START = {
    "t": 0.0,
    "type": "start",
    "schema": 1,
    "task": "coffee",
    "monitor": "val_loss",
    "mode": "min",
    "effective_batch_size": 8,
    "micro_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "world_size": 1,
}
SCRIPT = "<script>alert(1)</script>"
ODD = (
    "empty",
    "torn",
    "newer",
    "words",
    "nan",
    "huge",
    "many",
    "script",
    "vast",
    "signs",
    "facts",
)  # names of what `odd_run` makes


def step(number: int, **fields: Any) -> dict:
    "A log point."
    return {
        "t": number / 10,
        "type": "step",
        "step": number,
        "epoch": number / 10,
        "loss": 1 / number,
        "lr": 1e-3,
        "samples_per_s": 80.0,
        **fields,
    }


def evaluation(number: int, best: bool = True, **metrics: Any) -> dict:
    "An evaluation."
    return {
        "t": number / 10,
        "type": "eval",
        "step": number,
        "epoch": number / 10,
        "metrics": metrics or {"val_loss": 2 / number},
        "best": best,
    }


def end(number: int, status: str = "completed", reason: str = "all steps done") -> dict:
    "The end of a run."
    return {"t": number / 10, "type": "end", "status": status, "reason": reason, "step": number}


def write_run(folder: Path, events: list, *settings: str, config: str | None = None) -> Path:
    "A run's folder with this log; an event may be text, which goes in as it is."
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(snapshot(compose("task.name=coffee", *settings)) if config is None else config)
    lines = [event if isinstance(event, str) else json.dumps(event) for event in events]
    (folder / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def plain_run(folder: Path, *settings: str, steps: int = 20, **start: Any) -> Path:
    "A run that came to its end, evaluated at every tenth step."
    events = [START | start]
    for number in range(1, steps + 1):
        events += [step(number)] + [evaluation(number)] * (number % 10 == 0)
    return write_run(folder, [*events, end(steps)], *settings)


def odd_run(folder: Path, kind: str) -> Path:
    "A run with something in it that nobody expects; `kind` is one of ODD."
    if kind == "empty":
        return write_run(folder / kind, [])
    if kind == "torn":
        path = write_run(folder / kind, [START, step(1), "{{{", "[" * 5000, "\x00"])
        with open(path / "events.jsonl", "ab") as log:
            log.write(b'\xff\xfe\n{"t": 5, "ty')
        (path / "checkpoints" / "step-00000001").mkdir(parents=True)
        (path / "checkpoints" / "step-00000001" / "manifest.json").write_text("[")
        (path / "checkpoints" / "BEST").write_text("../../etc")
        (path / "predictions.npz").write_bytes(b"PK\x03\x04")
        return path
    if kind == "newer":
        return write_run(
            folder / kind,
            [
                START | {"schema": 9, "reasons": {"a": {"b": 1}}, "ignored": [{"x": 1}]},
                {"t": 3, "type": "telemetry", "x": [1]},
                step(1),
            ],
            config="unheard_of: {a: 1}\noptimizer: {lr: 3}\n",
        )
    if kind == "words":
        return write_run(
            folder / kind, [START, step(1, loss="low"), evaluation(1, val_loss="low"), step(2)], config="optimizer: ["
        )
    if kind == "nan":
        return write_run(
            folder / kind,
            [
                START,
                *(step(n, loss=None, lr=None, samples_per_s=None) for n in range(1, 50)),
                evaluation(49, val_loss=None),
                *({"t": n, "type": "nan", "step": n, "value": "nan"} for n in range(500)),
                json.dumps(step(50, loss=float("nan"))),
            ],
        )
    if kind == "huge":
        return write_run(
            folder / kind,
            [
                START,
                *(step(n, loss=(-1) ** n * 1e308, samples_per_s=1e308) for n in range(1, 60)),
                evaluation(2**62, val_loss=-1e308),
            ],
        )
    if kind == "many":
        return write_run(folder / kind, [START, evaluation(1, **{f"m{n}": n for n in range(200_000)}, val_loss=1.0)])
    if kind == "script":
        told = [
            START | {"monitor": f"{SCRIPT}$\\x$", "task": SCRIPT},
            {"t": 1, "type": "message", "text": f"{SCRIPT}\x1b[31m\ud800"},
            {"t": 1, "type": "restart", "step": 0, "notes": [SCRIPT, 5, None]},
        ]
        return write_run(
            folder / f"{SCRIPT.replace('/', '_')}$\\frac$",
            [*told, step(1), evaluation(1, **{f"{SCRIPT}$\\x$": 1.0, "_u": 2.0, "run": 3.0}), end(1, SCRIPT, SCRIPT)],
        )
    if kind == "vast":  # JSON has whole numbers of any length, and two floats may have no sum
        big = 10**400
        return write_run(
            folder / kind,
            [
                START | {"total_steps": 2**62, "steps_per_epoch": 1},
                step(1),
                step(2, loss=big),
                step(3) | {"step": big},
                step(4) | {"epoch": big},
                step(5) | {"t": big},
                {"t": 1e300, "type": "budget", "left_s": 1e308, "reserve_s": 1e308, "told": "x"},
                step(6, ranks=[{"memory_gib": big, "busy": big}, 5]) | {"t": 1.5e308},
                evaluation(6, val_loss=big),
                evaluation(7, val_loss=1.0) | {"epoch": big},
                evaluation(8),
                step(9),
                {"t": 9, "type": "nan", "step": big},
            ],
        )
    if kind == "signs":  # names that are formulas, text that no terminal can write
        told = {"t": 1, "type": "message", "text": "broken \ud800, \x1b[2J and \x07"}
        return write_run(
            folder / kind,
            [
                START | {"monitor": "$\\x$"},
                told,
                step(1),
                evaluation(1, **{"$\\x$": 1.0, "$\\frac$": 2.0, "m" * 100_000: 3.0}),
                step(2),
                end(2),
            ],
        )
    path = plain_run(folder / kind)
    (path / "environment.json").write_text(
        '{"platform": 3, "launch": [1], "versions": "x", "sessions": [1, 2], "decided": 5, "time_limit": 7, "auto": 1}'
    )
    return path
