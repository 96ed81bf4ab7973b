"""Run the benchmarks and write their page: `python bench/page.py [NAME …]`, which is `make bench`.

Each script of this folder writes its figures to build/bench/NAME.json. From these files come bench/results.json, with
the day and the machine, bench/results.md and its picture, bench/results.svg. What is lost stands first. With names only
those scripts run, and the newest figures of the others are taken, with their day; `--page` runs none.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FIGURES = HERE.parent / "build" / "bench"
ARGUMENTS = {  # without them it takes an hour more
    "checkpoints": ("--mb", "100"),
    "diloco": ("--rows", "ddp lr 0.004", "ddp lr 0.008", "diloco lr 0.004"),
    "redraws": ("--pairs", "0"),
}
SCRIPTS = {file.stem: ARGUMENTS.get(file.stem, ()) for file in sorted(HERE.glob("*.py")) if file.stem != "page"}
NOISE = 1.05  # a ratio up to this is not told from 1


@dataclass(frozen=True)
class Row:
    "A line of the page: less is better. `limit`: a peer's figure, or what is to be reached."

    what: str
    script: str
    unit: str
    against: str  # what the limit is
    read: Callable[[Any], tuple[float, float]]  # (ours, the limit) from the script's figures
    form: str = ".3g"


def _ways(table: str, ours: str, other: str) -> Callable[[Any], tuple[float, float]]:
    "Microseconds a sample of two ways in a table of data.py."
    return lambda d: (d["tables"][table][ours]["median_us"], d["tables"][table][other]["median_us"])


def _cliff(d: dict) -> tuple[float, float]:
    ways = next(found for name, found in d["tables"].items() if name.endswith("GiB") and "around" not in name)
    return ways["kit, just above"]["median_us"], ways["by hand"]["median_us"]


def _step(variant: str, limit: float) -> Callable[[Any], tuple[float, float]]:
    return lambda d: (d["results"][variant]["cpu"]["kit - barest"]["median"], limit)


def _peer(ours: str, other: str) -> Callable[[Any], tuple[float, float]]:
    return lambda d: (d["results"][ours]["us"], d["results"][other]["us"])


def _whole(command: str, limit_s: float) -> Callable[[Any], tuple[float, float]]:
    return lambda d: (d["results"][command]["cpu_s"], limit_s)


def _first_step(way: str, limit_s: float) -> Callable[[Any], tuple[float, float]]:
    return lambda d: (statistics.median(d[way]["wall_s"]), limit_s)


def _said(way: str) -> Callable[[Any], tuple[float, float]]:
    return lambda d: (statistics.median(d[way]["said_s"]), 0.5)


def _process(ours: str, other: str) -> Callable[[Any], tuple[float, float]]:
    return lambda d: (d["results"][ours]["median_s"], d["results"][other]["median_s"])


def _saving(d: dict) -> tuple[float, float]:
    found = next(iter(d.values()))
    return tuple(statistics.median(found[way]) for way in ("background", "torch.save"))  # type: ignore[return-value]  # two names, so two numbers


MILLION = "1,000,000 steps, a log point each"
ROWS = (
    Row("a step, all guards, over the barest loop", "loop", "µs", "aim", _step("all guards", 20)),
    Row("a step that may be skipped, over the barest", "loop", "µs", "aim", _step("nan_policy=skip", 30)),
    Row("a step with a weighted loss, over the barest", "loop", "µs", "aim", _step("(sum, weight)", 30)),
    Row(
        "an epoch of ten steps, ÷ by hand",
        "loop",
        "×",
        "aim",
        lambda d: (d["epochs"]["kit / hand"]["median"], 1.3),
    ),
    Row(
        "a step by `sk.fit`, equal terms", "peers", "µs", "barest loop", _peer("sk.fit, equal terms", "barest, sliced")
    ),
    Row(
        "a step by `sk.fit`, equal terms",
        "peers",
        "µs",
        "Ignite, sliced",
        _peer("sk.fit, equal terms", "Ignite, sliced"),
    ),
    Row(
        "a step by `sk.fit`, by default",
        "peers",
        "µs",
        "raw + DataLoader",
        _peer("sk.fit, by default", "barest, DataLoader"),
    ),
    Row(
        "a step by `sk.fit`, by default",
        "peers",
        "µs",
        "Lightning, DataLoader",
        _peer("sk.fit, by default", "Lightning, DataLoader"),
    ),
    Row(
        "a step by `sk.fit`, by default",
        "peers",
        "µs",
        "Keras, its faster way",
        lambda d: (
            d["results"]["sk.fit, by default"]["us"],
            min(way["us"] for name, way in d["results"].items() if name.startswith("Keras")),
        ),
    ),
    Row("a sample, read one by one", "data", "µs", "DataLoader", _ways("one by one", "kit", "DataLoader")),
    Row("a sample, by `__getitems__`", "data", "µs", "DataLoader", _ways("__getitems__", "kit", "DataLoader")),
    Row("a sample, resident", "data", "µs", "by hand", _ways("a TensorDataset", "kit, on the device", "by hand")),
    Row("a sample of a data set just above the limit", "data", "µs", "by hand", _cliff),
    Row(
        "a sample of a data set of 1.004 GiB",
        "data",
        "µs",
        "by hand",
        _ways("a TensorDataset around 1 GiB", "kit, 1.004 GiB", "by hand"),
    ),
    *(
        Row(f"rows of a .{ending}", "data", "µs", way, _ways(f"rows of a .{ending}", "kit, ArrayDataset", "by hand"))
        for ending, way in (
            ("safetensors", "by hand, sliced"),
            ("h5", "by hand, sorted"),
            ("parquet", "by hand, in memory"),
        )
    ),
    Row(
        "rows of 4 KB in a file",
        "data",
        "µs",
        "by hand, sorted",
        _ways("rows of 4 KB in a file", "kit, ArrayDataset", "by hand, sorted"),
    ),
    Row(
        "rows of 4 KB, one by one",
        "data",
        "µs",
        "DataLoader",
        _ways("rows of 4 KB in a file", "kit, one by one", "DataLoader, one by one"),
    ),
    Row(
        "the order of 10⁸ samples",
        "data",
        "bytes a sample",
        "a tensor of it",
        lambda d: (d["orders"][-1]["order_bytes_a_sample"], 8.0),
    ),
    Row(
        "two ranks, a step ÷ by hand",
        "distributed",
        "×",
        "aim, 1 ÷ 0.98",
        lambda d: (1 / d["steps_per_s"]["2 ranks"]["ratio"], 1 / 0.98),
    ),
    Row(
        "two ranks, CPU of a step ÷ by hand",
        "distributed",
        "×",
        "aim, 1 ÷ 0.98",
        lambda d: (d["steps_per_s"]["2 ranks"]["cpu_ratio"], 1 / 0.98),
    ),
    Row(
        "samples/s of one rank ÷ those of two",
        "distributed",
        "×",
        "by hand",
        lambda d: tuple(1 / d["steps_per_s"]["scaling"][way] for way in ("spectrakit", "torchrun")),
    ),
    *(
        Row(
            f"`{name}` to its target loss",
            "target",
            "CPU s",
            other,
            lambda d, name=name, other=other: tuple(
                d["tables"][name][way].get("cpu_s", float("nan")) for way in ("sk.fit", other)
            ),
        )
        for name in ("digits", "coffee", "10⁶ rows")
        for other in ("barest", "DataLoader")
    ),
    Row(
        "a step of a small model on a GPU",
        "graphs",
        "µs",
        "by hand, captured",
        lambda d: (d["results"]["sk.fit, captured"]["us"], d["results"]["by hand, captured"]["us"]),
    ),
    Row("the pause for 100 MB", "checkpoints", "s", "torch.save", _saving),
    Row(
        "predictions to disk, 400 MB",
        "predictions",
        "s",
        "`numpy.savez`",
        lambda d: (d["results"]["spectrakit"]["seconds"], d["results"]["savez"]["seconds"]),
    ),
    Row(
        "memory held by them",
        "predictions",
        "MB",
        "`numpy.savez`",
        lambda d: (d["results"]["spectrakit"]["own_mb"], d["results"]["savez"]["own_mb"]),
    ),
    Row("`spectrakit runs`, 1,000 runs", "reading", "CPU s", "aim", _whole("runs: 1000 of 5,000 steps", 1)),
    *(
        Row(
            f"`{command}`, 10⁶ steps, a log point each {'step' if every == 1 else every}",
            "reading",
            "CPU s",
            "aim",
            _whole(f"{command}: {MILLION} {every}", 3),
        )
        for every in (10, 1)
        for command in ("show", "report", "compare two")
    ),
    Row(
        "a trial begins after it is asked for",
        "search",
        "s",
        "aim",
        lambda d: (statistics.median(d["starts_s"]), 0.3),
    ),
    Row("trials by `sk.search`", "search", "s", "a process each", lambda d: (d["search_s"], d["processes_s"])),
    Row(
        "the latest end of a study with a limit of 15 s",
        "search",
        "s",
        "limit",
        lambda d: (15 + max(d["overruns_s"]), 15),
    ),
    Row(
        "what trials leave behind: processes, threads, files, folders",
        "search",
        "",
        "below one",
        lambda d: (sum(d["left_behind"].values()), 1),
    ),
    *(
        Row(
            f"digits with {name}",
            "tricks",
            "log loss",
            "plain",
            lambda d, name=name: tuple(statistics.fmean(d[way]["losses"]) for way in (name, "plain")),
        )
        for name in ("training.mixup=0.2", "training.ema_decay=0.99", "training.average=last:5", "folds.seeds=3")
    ),
    Row("■ until the cell says that the run stops", "stop", "s", "aim", _said("■")),
    Row("Stop until the cell says that the run stops", "stop", "s", "aim", _said("Stop")),
    Row("the first step, with a process that waits", "start", "s", "aim", _first_step("warm", 0.5)),
    Row(
        "`spectrakit profiles`",
        "imports",
        "s",
        "yaml and one composition",
        _process("spectrakit profiles", "yaml and one composition"),
    ),
    Row("`import spectrakit`", "imports", "s", "`python -c pass`", _process("import spectrakit", "python -c pass")),
)


def machine() -> dict[str, str]:
    "Where this was measured, without its name."
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "system": platform.system(),
        "processor": f"{platform.machine()}, {os.cpu_count()} cores",
        "memory": f"{memory:.0f} GiB",
        "load": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "numpy", "accelerate", "hydra-core")},
    }


def measure(name: str) -> None:
    "Run one script, and put the day and the machine beside its figures."
    print(f"=== bench/{name}.py", flush=True)
    file = FIGURES / f"{name}.json"
    done = subprocess.run([sys.executable, HERE / f"{name}.py", *SCRIPTS[name], "--json", file.with_suffix(".new")])
    if done.returncode:
        raise SystemExit(f"bench/{name}.py ended with {done.returncode}")
    figures = json.loads(file.with_suffix(".new").read_text())
    day = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    command = " ".join(["python", f"bench/{name}.py", *SCRIPTS[name]])
    file.write_text(json.dumps({"day": day, "command": command, "machine": machine(), "figures": figures}, indent=1))
    file.with_suffix(".new").unlink()


def rows_of(known: dict[str, dict]) -> list[tuple[Row, float, float]]:
    "(row, ours, limit) of each row whose figures are known, the worst ratio first."
    run = {name: about["figures"] for name, about in known.items() if "not_run" not in about["figures"]}
    found = [(row, *row.read(run[row.script])) for row in ROWS if row.script in run]
    return sorted(found, key=lambda one: -one[1] / one[2])


def draw(known: dict[str, dict], rows: list[tuple[Row, float, float]], file: Path) -> None:
    "The picture: each row as a share of its limit; the kits' steps; what reading takes by the number of runs."
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 0.26 * len(rows) + 2), layout="constrained")
    panels = figure.subplots(1, 3, width_ratios=(5, 4, 3))
    labels = [f"{row.what} ({row.against})".replace("`", "") for row, _, _ in rows][::-1]
    ratios = [ours / limit for _, ours, limit in rows][::-1]
    panels[0].barh(labels, ratios, color=["#d55e00" if ratio > NOISE else "#0072b2" for ratio in ratios])
    panels[0].axvline(1, color="#222222", linewidth=1)
    ticks = (0.1, 0.2, 0.5, 1, 2, 5)
    panels[0].set(xscale="log", xlim=(0.1, max(3.0, 1.1 * max(ratios))), title="ours ÷ the limit, less is better")
    panels[0].set_xticks(ticks, labels=[f"{tick:g}" for tick in ticks], minor=False)
    panels[0].minorticks_off()
    if "peers" in known:
        ways = sorted(known["peers"]["figures"]["results"].items(), key=lambda item: -item[1]["us"])
        colors = ["#d55e00" if name.startswith("sk.fit") else "#9a9a9a" for name, _ in ways]
        panels[1].barh([f"{name} {way['version']}" for name, way in ways], [way["us"] for _, way in ways], color=colors)
        panels[1].set(title="µs a step, the same network")
    if "reading" in known:
        results = known["reading"]["figures"]["results"]
        runs = [(int(name.split()[1]), found["cpu_s"]) for name, found in results.items() if name.startswith("runs")]
        panels[2].plot(*zip(*runs, strict=True), marker="o", color="#0072b2", label="`runs`")
        panels[2].set(xscale="log", ylim=(0, None), xlabel="runs in the folder", title="CPU seconds to list runs")
    for panel in panels:
        panel.tick_params(labelsize=7)
        panel.title.set_fontsize(9)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "bench"}):  # the same bytes for the same figures
        figure.savefig(file, metadata={"Date": None})


def table(rows: list[tuple[Row, float, float]], known: dict[str, dict]) -> list[str]:
    lines = ["| | ours | against | | ratio | measured |", "|---|---|---|---|---|---|"]
    for row, ours, limit in rows:
        numbers = f"{ours:{row.form}} {row.unit} | {row.against} | {limit:{row.form}} {row.unit} | {ours / limit:.2f}"
        lines.append(f"| {row.what} | {numbers} | {known[row.script]['day']} |")
    return lines


def write_page(known: dict[str, dict]) -> None:
    "Write results.json, results.svg and results.md."
    rows = rows_of(known)
    lost = [one for one in rows if one[1] > NOISE * one[2]]
    draw(known, rows, HERE / "results.svg")
    (HERE / "results.json").write_text(json.dumps(known, indent=1) + "\n")
    lines = [
        "# Measured",
        "",
        "Written by `python bench/page.py`; the figures are in `results.json`. Less is better, and a ratio up",
        f"to {NOISE} is not told from 1. **CPU s** are seconds of the processor, which other programs do not lengthen.",
        "",
    ]
    lines += [
        "![each row as a share of its limit](results.svg)",
        "",
        f"## Lost: {len(lost)} of {len(rows)}",
        "",
        *table(lost, known),
    ]
    lines += ["", "## Reached", "", *table([one for one in rows if one not in lost], known), "", "## How", ""]
    for name in (name for name in SCRIPTS if name in known and "not_run" not in known[name]["figures"]):
        about = known[name]["machine"]
        facts = ", ".join(f"{key} {value}" for key, value in about.items())
        lines.append(f"- `{known[name]['command']}`, {known[name]['day']}: {facts}")
    for name in (name for name in SCRIPTS if "not_run" in known.get(name, {}).get("figures", {})):
        lines.append(f"- `bench/{name}.py`: {known[name]['figures']['not_run']}")
    if "peers" in known:
        left_out = known["peers"]["figures"]["left_out"]
        lines += ["", *(f"- left out: {name}, {reason}" for name, reason in left_out.items())]
    if missing := [f"`bench/{name}.py`" for name in SCRIPTS if name not in known]:
        lines += ["", f"Not measured yet for this page: {', '.join(missing)}."]
    lines.append("\nWhat each script does, and how to read it: [README.md](README.md).")
    (HERE / "results.md").write_text("\n".join(lines) + "\n")
    print(f"bench/results.md: {len(lost)} of {len(rows)} rows are lost")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SCRIPTS)}; default: all")
    parser.add_argument("--page", action="store_true", help="run nothing: write the page from what is known")
    options = parser.parse_args()
    if unknown := set(options.names) - set(SCRIPTS):
        parser.error(f"there is no bench/{unknown.pop()}.py among {', '.join(SCRIPTS)}")
    FIGURES.mkdir(parents=True, exist_ok=True)
    for name in [] if options.page else options.names or SCRIPTS:
        measure(name)
    earlier = json.loads((HERE / "results.json").read_text()) if (HERE / "results.json").is_file() else {}
    known = {file.stem: json.loads(file.read_text()) for file in sorted(FIGURES.glob("*.json")) if file.stem in SCRIPTS}
    write_page({**earlier, **known})


if __name__ == "__main__":
    main()
