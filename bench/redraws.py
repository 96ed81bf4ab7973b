"""What it costs to look at a run: `python bench/redraws.py [--rounds N] [--seconds S] [--pairs N] [--json FILE]`.

- redraws: milliseconds of processor time of the kernel's main thread, and bytes that leave the kernel, for one redraw
  of a run with 10³ and with 10⁶ steps: the live view, and what else people use: livelossplot, fastprogress with its
  graph, and a loop with `clear_output(wait=True)` and `plt.show()`. All draw in one Jupyter kernel, in turn; each
  redraw comes after a new step. The ratios are medians over rounds.
- a run: two ranks over gloo train for S seconds, with and without the view, in pairs. Aim: the view takes at most 1 %
  of the time, and the ranks make as many steps.

livelossplot and fastprogress are fetched by pip into build/peers; without them their rows are missing. bench/README.md
says how to read the tables.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from queue import Empty
from typing import Any
from unittest import mock

HERE = Path(__file__).resolve()
PEERS = HERE.parent.parent / "build" / "peers"
PACKAGES = (
    "livelossplot==0.6.1",
    "fastprogress==1.1.6",
    "python-fasthtml==0.14.5",
    "fastlite==0.2.4",
    "apswutils==0.1.2",
    "apsw==3.54.1.0",
    "itsdangerous==2.2.0",
    "python-multipart==0.0.34",
    "oauthlib==4.0.1",
    "httptools==0.9.0",
    "watchfiles==1.3.0",
    "websockets==17.4",
)
POINTS, EVALUATE_EVERY, BATCH, SAMPLES, WIDTH = (1000, 1_000_000), 100, 64, 6400, 768
AIM = 0.01


# --- in the kernel: ways to draw a run, each with `more()`, one more step, and `redraw()` ----------------------------


def numbers(step: int) -> dict:
    "What a step of the made-up run has: loss, lr, samples_per_s."
    noise = step * 7919 % 101 / 101
    return {
        "loss": 2 / (1 + step / 200) + 0.1 * noise,
        "lr": 1e-3 * (1 - step / 2_000_000),
        "samples_per_s": 3000.0 + 200 * noise,
    }


class LiveFrame:
    "The live view: header and plots."

    def __init__(self, points: int):
        from spectrakit.runs.events import EventLog
        from spectrakit.view.cell.live import LiveView, ViewOptions
        from spectrakit.view.run_state import apply_event

        self.now, self.step = 0.0, 0
        folder = Path(tempfile.mkdtemp()) / "coffee-20261120-120000"
        folder.mkdir()
        self.log = EventLog(folder / "events.jsonl")
        self.log.write(
            "start",
            schema=1,
            task="coffee",
            total_steps=2_000_000,
            monitor="val_loss",
            effective_batch_size=64,
            reasons={"device": "cpu: as asked"},
        )
        self.view = LiveView(folder, ViewOptions(writes=False), clock=lambda: self.now, work=lambda: 0.0)
        made, began = [event for _ in range(points) for event in self._events()], time.thread_time()
        for event in made:
            apply_event(self.view.state, event)
        self.us_an_event = (time.thread_time() - began) / len(made) * 1e6

    def _events(self) -> list[dict]:
        self.step += 1
        found = [
            {
                "type": "step",
                "t": self.step / 100,
                "step": self.step,
                "epoch": self.step / EVALUATE_EVERY,
                **numbers(self.step),
                "ranks": [{"memory_gib": 1.5, "busy": 0.9}] * 2,
            }
        ]
        if self.step % EVALUATE_EVERY == 0:
            found.append(
                {
                    "type": "eval",
                    "t": self.step / 100,
                    "step": self.step,
                    "epoch": self.step / EVALUATE_EVERY,
                    "best": True,
                    "metrics": {"val_loss": 2.2 / (1 + self.step / 200), "val_accuracy": 0.9},
                }
            )
        return found

    def more(self) -> None:
        for event in self._events():
            self.log.write(event["type"], **{name: value for name, value in event.items() if name not in ("type", "t")})
        self.now += 100.0

    def redraw(self) -> None:
        self.view.update()


class HeaderAlone(LiveFrame):
    "The live view between two plots: only its header, which is drawn once a second."

    def more(self) -> None:
        super().more()
        self.view.update()
        self.now += 1.5

    def redraw(self) -> None:
        self.view.update()


class Livelossplot:
    "PlotLosses with its matplotlib output; livelossplot draws a panel for each of three metrics."

    def __init__(self, points: int):
        from livelossplot import PlotLosses

        self.plot, self.step = PlotLosses(outputs=["MatplotlibPlot"]), 0
        for _ in range(points):
            self.more()

    def more(self) -> None:
        self.step += 1
        self.plot.update(
            {
                **numbers(self.step),
                **({"val_loss": 2.2 / (1 + self.step / 200)} if self.step % EVALUATE_EVERY == 0 else {}),
            },
            self.step,
        )

    def redraw(self) -> None:
        self.plot.send()


class Lists:
    "The curves as lists, as a person keeps them."

    def __init__(self, points: int):
        self.x, self.y, self.valid_x, self.valid_y, self.lr, self.speed = [], [], [], [], [], []
        for _ in range(points):
            self.more()

    def more(self) -> None:
        step = len(self.x) + 1
        found = numbers(step)
        for values, value in (
            (self.x, step),
            (self.y, found["loss"]),
            (self.lr, found["lr"]),
            (self.speed, found["samples_per_s"]),
        ):
            values.append(value)
        if step % EVALUATE_EVERY == 0:
            self.valid_x.append(step), self.valid_y.append(2.2 / (1 + step / 200))


class Fastprogress(Lists):
    "The graph of a master bar: one panel, training and validation loss."

    def __init__(self, points: int):
        from fastprogress.fastprogress import NBMasterBar

        super().__init__(points)
        self.bar = NBMasterBar(range(2))
        self.bar.on_iter_begin()

    def redraw(self) -> None:
        self.bar.update_graph([[self.x, self.y], [self.valid_x, self.valid_y]])


class ClearOutput(Lists):
    "clear_output(wait=True), three panels of a new figure, plt.show()."

    def redraw(self) -> None:
        import matplotlib.pyplot as plt
        from IPython.display import clear_output

        clear_output(wait=True)
        _, axes = plt.subplots(1, 3, figsize=(9, 3))
        axes[0].plot(self.x, self.y)
        axes[0].plot(self.valid_x, self.valid_y)
        axes[1].plot(self.x, self.lr)
        axes[2].plot(self.x, self.speed)
        plt.show()


WAYS = {
    "live view": LiveFrame,
    "its header alone": HeaderAlone,
    "livelossplot": Livelossplot,
    "fastprogress": Fastprogress,
    "clear_output": ClearOutput,
}
made: dict[str, Any] = {}


def make(way: str, points: int) -> float:
    "Have a run of so many points ready for `way`; microseconds that an event took where that is known, else 0."
    made[way] = WAYS[way](points)
    return getattr(made[way], "us_an_event", 0.0)


def more(way: str) -> None:
    made[way].more()


def redraw(way: str) -> tuple[float, float]:
    "Milliseconds of a redraw, by the processor and by the wall."
    began = time.thread_time(), time.perf_counter()
    made[way].redraw()
    return 1000 * (time.thread_time() - began[0]), 1000 * (time.perf_counter() - began[1])


def train(steps: int, shown: bool) -> dict:
    """Two ranks train; seconds of the whole, of the view by the wall and by the processor, of the kernel's process, and
    steps/s behind the first tenth.
    """
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    import spectrakit.api.actions
    from spectrakit import Task, compose

    class Net(Task):
        "An MLP of about 0.8 million weights."

        def datasets(self, cfg):
            x = torch.randn(SAMPLES, 256, generator=torch.Generator().manual_seed(0))
            return TensorDataset(x, x[:, :1]), TensorDataset(x[:256], x[:256, :1])

        def model(self, cfg):
            return nn.Sequential(
                nn.Linear(256, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)
            )

        def loss(self, model, batch):
            return nn.functional.mse_loss(model(batch[0]), batch[1])

    spent = {"wall": 0.0, "cpu": 0.0}

    def timed(call: Any) -> Any:
        def wrapped() -> None:
            began = time.perf_counter(), time.thread_time()
            call()
            spent["wall"] += time.perf_counter() - began[0]
            spent["cpu"] += time.thread_time() - began[1]

        return wrapped

    def make_view(*words: Any, **options: Any) -> Any:
        view = make(*words, **options)
        if view:
            view.update, view.close = timed(view.update), timed(view.close)
        return view

    make, began = spectrakit.api.actions.make_view, (time.perf_counter(), time.process_time())
    config = compose(
        "local/accumulate_grad_batches=debug",
        "trainer.accelerator=cpu",
        "trainer.devices=2",
        f"data.micro_batch_size={BATCH}",
        f"trainer.max_steps={steps}",
        "trainer.max_epochs=1000000",
        "trainer.log_every_n_steps=10",
        "checkpoint.enabled=false",
        f"run.dir={tempfile.mkdtemp()}",
    )
    with mock.patch.object(spectrakit.api.actions, "make_view", make_view):
        run = spectrakit.api.actions.fit(Net(), config, show=shown)
    whole, kernel = time.perf_counter() - began[0], time.process_time() - began[1]
    run.raise_for_status()
    points = [(e["step"], e["t"]) for e in run.events if e["type"] == "step"]
    (a, from_t), (b, to_t) = points[len(points) // 10], points[-1]
    return {
        "seconds": whole,
        "view_wall_s": spent["wall"],
        "view_cpu_s": spent["cpu"],
        "kernel_cpu_s": kernel,
        "steps_per_s": (b - a) / (to_t - from_t),
    }


# --- outside: a kernel that is asked, and weighed -------------------------------------------------------------------


class Kernel:
    "A kernel of Jupyter with this file loaded as `redraws`. To be used with `with`."

    def __enter__(self) -> "Kernel":
        from jupyter_client.manager import start_new_kernel

        environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(PEERS)]),
            "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        }
        self._manager, self._client = start_new_kernel(kernel_name="python3", env=environ, cwd=tempfile.mkdtemp())
        self.ask("__import__('redraws') and None")
        return self

    def __exit__(self, *_: Any) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)

    def ask(self, expression: str) -> tuple[Any, int]:
        "What an expression is worth in the kernel, and the bytes that a page gets meanwhile."
        sent = self._client.execute(
            "import json, redraws\n" + f"answer = json.dumps({expression})", user_expressions={"answer": "answer"}
        )
        size, idle, reply, socket, session = 0, False, None, self._client.iopub_channel.socket, self._client.session
        while reply is None or not idle:
            while socket.poll(20):
                parts = socket.recv_multipart()
                message = session.deserialize(session.feed_identities(parts)[1])
                if message["parent_header"].get("msg_id") != sent:
                    continue
                idle = idle or message["content"].get("execution_state") == "idle"
                if message["msg_type"] == "error":
                    raise SystemExit("\n".join(message["content"]["traceback"]))
                if message["msg_type"] in ("display_data", "update_display_data", "clear_output", "stream", "comm_msg"):
                    size += sum(map(len, parts))
            try:
                found = self._client.get_shell_msg(timeout=0)
            except Empty:
                continue
            if found["parent_header"].get("msg_id") == sent:
                reply = found["content"]
        return json.loads(
            eval(reply["user_expressions"]["answer"]["data"]["text/plain"])
        ), size  # the repr of a string of JSON


def fetch_peers() -> list[str]:
    "The ways to draw that are at hand."
    wanted = json.dumps([sys.version, PACKAGES])
    ready = PEERS / "ready.json"
    if not ready.is_file() or ready.read_text() != wanted:
        print(f"fetching {PACKAGES[0]} and {PACKAGES[1]} into build/peers", flush=True)
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "--disable-pip-version-check",
                "install",
                "--quiet",
                "--no-deps",
                "--upgrade",
                "--target",
                PEERS,
                *PACKAGES,
            ],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            print(f"not to be had here, and left out: {(done.stderr.strip().splitlines() or ['pip said nothing'])[-1]}")
        else:
            ready.write_text(wanted)
    return [way for way in WAYS if way not in ("livelossplot", "fastprogress") or (PEERS / way).is_dir()]


def measure_redraws(kernel: Kernel, ways: list[str], points: int, rounds: int) -> tuple[dict, float]:
    "For each way its milliseconds and bytes, round by round; and what an event takes."
    took = {way: kernel.ask(f"redraws.make({way!r}, {points})")[0] for way in ways}
    found = {way: [] for way in ways}
    for turn in range(rounds + 1):
        for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
            kernel.ask(f"redraws.more({way!r})")
            (cpu, wall), size = kernel.ask(f"redraws.redraw({way!r})")
            if turn:
                found[way].append((cpu, size, wall))  # the first one imports, and finds fonts
    return found, took["live view"]


def show_redraws(results: dict[int, dict]) -> dict:
    "Print the table; the figures for --json."
    figures = {}
    print(f"\n{'':17}" + "".join(f"   │ {f'{points:,} steps':40}" for points in results))
    print(f"{'':17}" + f"   │ {'ms':>8} {'KiB':>7} {'× ms':>7} {'× bytes':>7} {'wall ms':>8}" * len(results))
    for way in next(iter(results.values())):
        line, figures[way] = f"{way:17}", {}
        for points, found in results.items():
            mine, ours = found[way], found["live view"]
            ms, size, wall = (statistics.median(column) for column in zip(*mine, strict=False))
            ratio, bytes_ratio = (
                statistics.median(a[i] / b[i] for a, b in zip(mine, ours, strict=False)) for i in (0, 1)
            )
            figures[way][points] = {
                "ms": ms,
                "bytes": size,
                "wall_ms": wall,
                "ms_ratio": ratio,
                "bytes_ratio": bytes_ratio,
            }
            line += f"   │ {ms:8.1f} {size / 1024:7.1f} {ratio:7.1f} {bytes_ratio:7.2f} {wall:8.1f}"
        print(line)
    return figures


def measure_runs(kernel: Kernel, seconds: float, pairs: int) -> list[dict]:
    "Pairs of runs, with the view and without it, in another order each time."
    pace = kernel.ask("redraws.train(300, False)")[0]["steps_per_s"]
    steps, found = max(300, int(pace * seconds)), []
    for pair in range(pairs):
        taken = {
            shown: kernel.ask(f"redraws.train({steps}, {shown})")
            for shown in ((True, False) if pair % 2 else (False, True))
        }
        (mine, size), (plain, _) = taken[True], taken[False]
        found.append(
            {
                "seconds": mine["seconds"],
                "share_wall": mine["view_wall_s"] / mine["seconds"],
                "share_cpu": mine["view_cpu_s"] / mine["seconds"],
                "share_of_process": (mine["kernel_cpu_s"] - plain["kernel_cpu_s"]) / mine["seconds"],
                "bytes_per_s": size / mine["seconds"],
                "steps_per_s": mine["steps_per_s"],
                "without": plain["steps_per_s"],
                "ratio": mine["steps_per_s"] / plain["steps_per_s"],
            }
        )
        f = found[-1]
        print(
            f"{f['seconds']:5.0f} s   {f['steps_per_s']:7.1f} with, {f['without']:7.1f} without, "
            f"ratio {f['ratio']:.3f}   view {f['share_wall']:.2%} by the wall, "
            f"{f['share_cpu']:.2%} by the processor, the kernel's process {f['share_of_process']:+.2%}   "
            f"{f['bytes_per_s'] / 1024:.1f} KiB/s",
            flush=True,
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="redraws of each kind (5)")
    parser.add_argument("--seconds", type=float, default=120, help="length of a run (120)")
    parser.add_argument("--pairs", type=int, default=1, help="pairs of runs; 0: none (1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    options = parser.parse_args()
    if options.rounds < 1 or options.pairs < 0 or options.seconds <= 0:
        parser.error("--rounds and --seconds need a number from 1 up, --pairs one from 0 up")
    ways = fetch_peers()
    with Kernel() as kernel:
        results, events = {}, {}
        for points in POINTS:
            results[points], events[points] = measure_redraws(kernel, ways, points, options.rounds)
    figures = show_redraws(results)
    print("taking in an event: " + ", ".join(f"{us:.1f} µs over {points}" for points, us in events.items()))
    runs = []
    if options.pairs:
        print("\ntwo ranks, steps/s")
        with Kernel() as kernel:
            runs = measure_runs(kernel, options.seconds, options.pairs)
        share, ratio = (statistics.median(run[name] for run in runs) for name in ("share_wall", "ratio"))
        print(
            f"The aim is at most {AIM:.0%} of the time. It is {'met' if share <= AIM else 'missed'}: {share:.2%}; "
            f"steps/s with the view ÷ without it: {ratio:.3f}."
        )
    if options.json:
        options.json.write_text(json.dumps({"redraws": figures, "us_an_event": events, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
