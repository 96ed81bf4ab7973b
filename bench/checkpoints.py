"""For how long training pauses for a checkpoint: `python bench/checkpoints.py [--mb 100 1000] [--rounds 7] [--json
FILE]`.

A network and its Adam state of so many megabytes, on the CPU, are saved in four ways that take turns:

- `background`: the kit as it is, `session.save`. The pause ends when the copy is made; the write is waited for before
the next turn.
- `foreground`: the same with checkpoint.background=false.
- `save_state`: `accelerator.save_state`, into a new folder.
- `torch.save`: a dictionary of both state dicts, into a new file.

The kit flushes, hashes and renames; the others leave their bytes to the system's cache. Beside that: how many steps a
small training loop makes while a checkpoint is written, against the same loop with nothing else; and how long it takes
to find the newest checkpoint, verify it and read it. bench/README.md says how to read the table.
"""

import argparse
import json
import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

from spectrakit import compose, detect
from spectrakit.checkpoint.store import find_checkpoint, load_state, load_weights
from spectrakit.config.effective_batch import BatchPlan
from spectrakit.distributed.context import create_run_context
from spectrakit.runs.events import EventLog
from spectrakit.train.state import Data, Execution, Goal, Learner, Record, Schedule, TrainState, save, writer_of
from spectrakit.watchdog.time_budget import Budget, TimeLimit

WIDTH = 1024
WAYS = ("background", "foreground", "save_state", "torch.save")


def trained(megabytes: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    "A stack of square layers and its Adam, after one step: together so many megabytes."
    layers = max(1, round(megabytes * 1e6 / (3 * 4 * WIDTH * (WIDTH + 1))))
    net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    adam = torch.optim.Adam(net.parameters(), lr=1e-4)
    for p in net.parameters():
        p.grad = torch.full_like(p, 1e-3)
    adam.step()
    adam.zero_grad()
    return net, adam


def session_of(net: nn.Module, adam: torch.optim.Optimizer, folder: Path, background: bool) -> TrainState:
    "The state of a run that saves this network, as often as it is asked to."
    folder.mkdir()
    config = compose(
        "local/accumulate_grad_batches=debug",
        "trainer.accelerator=cpu",
        f"checkpoint.background={str(background).lower()}",
        "checkpoint.keep_last=1",
    )
    context = create_run_context(config, detect())
    s = TrainState(
        None,
        config,
        Execution(context, folder, Budget(TimeLimit(None, 0.0, "none"))),
        Learner(net, list(net.parameters()), adam, [1e-4]),
        Data(BatchPlan(8, 8), valid=net),
        Schedule(10**9, 10**9),
        Record(EventLog(folder / "events.jsonl")),
        Goal("val_loss"),
    )
    writer_of(s).saves.writes.share.limit = math.inf
    return s


def one_save(s: TrainState) -> tuple[float, float]:
    "Seconds that training waits for a checkpoint of the next step, and seconds until it is whole."
    s.progress.step += 1
    began = time.perf_counter()
    save(s)
    paused = time.perf_counter() - began
    writer_of(s).flush()
    if writer_of(s).written_step != s.progress.step:
        raise SystemExit(f"step {s.progress.step} was not saved")
    return paused, time.perf_counter() - began


def timed(run: Callable[[], None]) -> float:
    "Seconds of one call."
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def pauses(megabytes: int, rounds: int, folder: Path) -> dict:
    """{way: pauses in seconds}, and the kit's seconds until a checkpoint is whole, and its first pause, which has to
    find the memory.
    """
    net, adam = trained(megabytes)
    kit = {way: session_of(net, adam, folder / way, way == "background") for way in WAYS[:2]}
    accelerator = Accelerator(cpu=True)
    prepared = accelerator.prepare(net, adam)

    def by_hand(way: str) -> float:
        target = folder / "other"
        if way == "save_state":
            took = timed(lambda: accelerator.save_state(str(target)))
        else:
            target.mkdir()
            took = timed(
                lambda: torch.save(
                    {"model": prepared[0].state_dict(), "optimizer": prepared[1].state_dict()}, target / "state.pt"
                )
            )
        shutil.rmtree(target)
        return took

    found: dict = {way: [] for way in WAYS}
    found["first"], found["whole"] = one_save(kit["background"])[0], []
    for i in range(rounds):
        for way in WAYS if i % 2 == 0 else WAYS[::-1]:
            if way in kit:
                paused, whole = one_save(kit[way])
                found[way].append(paused)
                if way == "background":
                    found["whole"].append(whole)
            else:
                found[way].append(by_hand(way))
    found["resume"] = [timed(lambda: read_back(kit["background"].checkpoints)) for _ in range(rounds)]
    found["slowdown"] = slowdown(kit["background"], rounds)
    return found


def read_back(folder: Path) -> None:
    "Find the newest checkpoint, verify it and read all of it."
    path, notes = find_checkpoint(folder)
    if notes:
        raise SystemExit(f"the checkpoint is not whole: {notes}")
    load_weights(path), load_state(path)


def slowdown(s: TrainState, rounds: int) -> dict:
    """A small training loop of one thread: its steps per second while a checkpoint is written, over those in a quiet
    time as long; and its slowest step, in ms.
    """
    x, net = torch.randn(64, 256), nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
    adam, threads = torch.optim.Adam(net.parameters(), fused=True), torch.get_num_threads()

    def steps(go_on: Callable[[], bool]) -> tuple[float, float]:
        began, slowest, count = time.perf_counter(), 0.0, 0
        while go_on():
            at = time.perf_counter()
            net(x).square().mean().backward()
            adam.step()
            adam.zero_grad()
            slowest, count = max(slowest, time.perf_counter() - at), count + 1
        return count / (time.perf_counter() - began), 1e3 * slowest

    ratios, slowest = [], {"while writing": [], "quiet": []}
    torch.set_num_threads(1)
    for _ in range(rounds):
        s.progress.step += 1
        save(s)
        began = time.perf_counter()
        busy, worst = steps(lambda: not writer_of(s).saves.writes.background.done)
        end = 2 * time.perf_counter() - began
        writer_of(s).flush()
        quiet, least = steps(lambda end=end: time.perf_counter() < end)
        ratios.append(busy / quiet)
        slowest["while writing"].append(worst), slowest["quiet"].append(least)
    torch.set_num_threads(threads)
    return {"ratios": ratios, "slowest_ms": slowest}


def told(values: list[float], unit: float = 1e3) -> str:
    "Median and range."
    return f"{unit * statistics.median(values):8.1f} ({unit * min(values):.1f} to {unit * max(values):.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--mb", type=int, nargs="+", default=[100, 1000], help="megabytes of weights and Adam state (100 1000)"
    )
    parser.add_argument("--rounds", type=int, default=7, help="turns of the four ways (7)")
    parser.add_argument("--folder", type=Path, help="where to write; the folder for temporary files by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    options, results = parser.parse_args(), {}
    for megabytes in options.mb:
        with tempfile.TemporaryDirectory(dir=options.folder) as name:
            found = pauses(megabytes, options.rounds, Path(name))
        results[megabytes] = found
        print(f"\n{megabytes} MB, {options.rounds} rounds, torch {torch.__version__}: ms, median (least to most)")
        for way in WAYS:
            print(f"  pause, {way:12} {told(found[way])}")
        for way in WAYS[2:]:
            ratios = [a / b for a, b in zip(found["background"], found[way], strict=True)]
            print(
                f"  background over {way:10} {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
            )
        print(f"  first pause, background {1e3 * found['first']:.1f}; whole on disk after {told(found['whole'])}")
        print(f"  verify and read back     {told(found['resume'])}")
        slow = found["slowdown"]
        print(
            f"  steps/s while writing over quiet {statistics.median(slow['ratios']):.3f} "
            f"({min(slow['ratios']):.3f} to {max(slow['ratios']):.3f}); slowest step "
            f"{statistics.median(slow['slowest_ms']['while writing']):.1f} ms, "
            f"quiet {statistics.median(slow['slowest_ms']['quiet']):.1f} ms",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
