"""States of a run for tests of what people see: event logs as a run writes them, and what a page shows of each."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from spectrakit.task.checks.failure_report import Failure
from spectrakit.view.cell.cards import failure_card
from spectrakit.view.cell.frame import FrameContext, body, header, toggles
from spectrakit.view.run_state import RunState, apply_event

NOW, EVERY = 1.79e9, 50
START = {
    "schema": 1,
    "task": "coffee",
    "total_steps": 600,
    "steps_per_epoch": EVERY,
    "monitor": "val_loss",
    "mode": "min",
    "effective_batch_size": 64,
    "micro_batch_size": 32,
    "device": "cuda:0",
    "device_gib": 14.7,
    "reasons": {
        "mixed_precision": "fp16: compute capability 7.5 has no bf16",
        "world_size": "2 processes: one for each GPU",
        "workers": "2 workers each: 4 cores for 2 processes",
    },
}
PARTS = (("processes", 2.1), ("data", 0.3), ("model", 0.5), ("loss", 0.2))


def log_of(
    steps: int, metrics: int = 2, ranks: int = 2, nan: range = range(0), every: int = EVERY, **start: object
) -> Iterator[dict]:
    "The events of a run that has come to step `steps`. `nan`: steps without a finite loss."
    chance, total = random.Random(1), int(str(start.get("total_steps", START["total_steps"])))
    for name, seconds in PARTS:
        yield {"t": 0.1, "type": "part", "name": name, "seconds": seconds}
    yield {"t": 5.0, "type": "start", **START, **start}
    yield {"t": 5.0, "type": "budget", "left_s": 30_000.0, "reserve_s": 1260.0, "told": "8:20:00 left"}
    for n in range(1, steps + 1):
        t, loss = 5 + n / 2, None if n in nan else 2 / (1 + n / 60) + 0.1 * chance.random()
        load = [{"memory_gib": 11.2 - 0.1 * rank, "busy": 0.95 - 0.02 * rank} for rank in range(ranks)]
        point = {"loss": loss, "lr": 1e-3 * (1 - n / (total + 1)), "samples_per_s": 3000 + 200 * chance.random()}
        yield {"t": t, "type": "step", "step": n, "epoch": n / EVERY, **point, "gpu_gib": 11.2, "ranks": load}
        if n % every == 0:
            names = {f"val_metric_{k}": math.sin(k + n / 80) * 10 ** (k % 4) for k in range(metrics - 2)}
            values = {"val_loss": 2.1 / (1 + n / 60), "val_accuracy": 1 - 0.6 / (1 + n / 40), **names}
            yield {"t": t, "type": "eval", "step": n, "epoch": n / EVERY, "metrics": values, "best": True}
            yield {"t": t, "type": "checkpoint", "step": n, "path": f"step-{n:08d}"}
        if n == 250 and not nan:
            yield {"t": t, "type": "restart", "step": 240, "notes": ["a rank was killed"]}


ODD_NAMES = ("<img src=x onerror=alert(1)>", "a&b", "\U0001f600", "x" * 200, "'q\"</div>", "line\nbreak", "\u202eevil")
CLOCK = (1.0, -50.0, 1e9, 0.0, 3e9)  # seconds, one event after the other


def oddly_named(event: dict) -> dict:
    "An evaluation with metrics that are named as no metric should be."
    if event["type"] != "eval":
        return event
    return {**event, "metrics": {**event["metrics"], **dict.fromkeys(ODD_NAMES, 1 / event["step"])}}


def not_finite(event: dict) -> dict:
    "An event none of whose values is finite."
    values = {name: math.nan for name in ("loss", "lr", "samples_per_s") if name in event}
    return {
        **event,
        **values,
        **({"metrics": {"val_loss": math.inf}, "best": False} if event["type"] == "eval" else {}),
    }


def state_of(events, name: str = "coffee-20261120-120000") -> RunState:
    state = RunState(name)
    for event in events:
        apply_event(state, event)
    return state


def ended(status: str, reason: str, steps: int = 600, **log: object) -> RunState:
    state = state_of(log_of(steps, **log))
    apply_event(state, {"t": state.t, "type": "end", "status": status, "reason": reason, "step": steps})
    return state


@dataclass(frozen=True)
class Shown:
    "A run as a page shows it."

    state: RunState
    context: FrameContext
    failure: Failure | None = None

    def html(self) -> str:
        "Header, boxes and body, as the three outputs of a cell."
        card = failure_card(self.failure) if self.failure else ""
        return (
            f'<div class="frame">{header(self.state, self.context)}{toggles(self.state)}'
            f"{body(self.state, self.context)}</div>{card}"
        )


def live(state: RunState, **context: object) -> Shown:
    return Shown(state, FrameContext(state.t + 1, NOW, **context))


def over(state: RunState, failure: Failure | None = None, **context: object) -> Shown:
    return Shown(state, FrameContext(state.t, NOW, running=False, **context), failure)


def all_states() -> dict[str, Shown]:
    "By name, each state in which people see a run."
    earlier = state_of(log_of(600), "coffee-20261119-093000")
    told = "compared with coffee-20261119-093000, the best run of coffee before (val_loss 0.1909): better by 4 %"
    flat = [{"t": 301 + n, "type": "step", "step": 560 + n, "loss": 0.4, "lr": 1e-6, "epoch": 9.0} for n in range(9)]
    busy = {"memory_gib": 14.3, "busy": 0.3}
    slow = {"t": 250.0, "type": "step", "step": 401, "loss": 0.3, "lr": 1e-3, "samples_per_s": 900.0, "epoch": 8.0}
    stopping = state_of(log_of(400))
    stopping.stopping = "stopping: saving step 400… ■ again ends now"
    starting = state_of([{"t": 0.1, "type": "part", "name": name, "seconds": s} for name, s in PARTS[:2]])
    why = Failure("RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x1841 and 3x4)", printed=("call 7",) * 9)
    cpu = log_of(200, ranks=0, device="cpu", device_gib=None)
    return {
        "nothing": live(RunState("coffee-20261120-120000")),
        "starting": live(starting, waited_s=4.2),
        "decided": live(state_of(log_of(0)), waited_s=9.0),
        "one point": live(state_of(log_of(1, every=1))),
        "running": live(state_of(log_of(400)), earlier=earlier, compared=told),
        "one metric": live(state_of(e for e in log_of(200) if e["type"] != "eval")),
        "cpu": live(state_of(e if e["type"] != "step" else {**e, "gpu_gib": None} for e in cpu)),
        "nan": live(state_of([*log_of(400, nan=range(200, 230)), {"t": 205.0, "type": "nan", "step": 400}])),
        "13 metrics": live(state_of(log_of(400, metrics=13))),
        "warned": live(state_of([*log_of(400), {**slow, "gpu_gib": 14.3, "ranks": [busy, busy]}])),
        "flat": live(state_of([*log_of(500, total_steps=900), *flat], "coffee-flat")),
        "odd names": live(state_of(map(oddly_named, log_of(400, monitor=ODD_NAMES[0])), "odd")),
        "nothing finite": live(state_of(map(not_finite, log_of(400)))),
        "a clock that jumps": live(state_of({**e, "t": CLOCK[n % 5]} for n, e in enumerate(log_of(400)))),
        "long": live(state_of(log_of(50_000, every=1000, total_steps=60_000))),
        "stopping": live(stopping),
        "interrupted": over(ended("interrupted", "a stop was requested", 300)),
        "out of time": over(ended("out_of_time", "the time is up: 0:21:00 are reserved", 500)),
        "completed": over(ended("completed", "all 600 optimizer steps done"), compared=told, earlier=earlier),
        "failed": over(ended("failed", why.reason, 300), why),
    }
