"Every scenario, and the report of a run of them: rows, kills and deadlines as plain values, and as markdown."

import inspect
import statistics
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import aimed, clocks, crashes, losses, promises, storage
from .harness import Row, Scenario, play
from .kills import Chain
from .study_kills import Round

LONG = ("a_limit_of_two_minutes",)  # these are repeated, by --deadline


def scenarios() -> list[Scenario]:
    "Every public function of one place, in the order in which they are written; but not the long ones."

    def is_one(module: Any, value: Any) -> bool:
        if not inspect.isfunction(value) or value.__module__ != module.__name__ or value.__name__.startswith("_"):
            return False
        needed = [name for name, one in inspect.signature(value).parameters.items() if one.default is one.empty]
        return needed == ["p"] and value.__name__ not in LONG

    return [
        value
        for module in (crashes, aimed, losses, storage, promises, clocks)
        for value in vars(module).values()
        if is_one(module, value)
    ]


def play_all(chosen: Iterable[Scenario], folder: Path, parallel: int, tell: Callable[[str], Any]) -> list[Row]:
    "Let scenarios happen, `parallel` at a time; `tell` gets a line after each."

    def one(numbered: tuple[int, Scenario]) -> Row:
        number, scenario = numbered
        row = play(scenario, folder / f"{number:03d}-{scenario.__name__}")
        tell(line(row))
        return row

    with ThreadPoolExecutor(parallel) as pool:
        return list(pool.map(one, enumerate(chosen)))


def line(row: Row) -> str:
    "A row in a line, and a line for each promise that was broken."
    how = "skipped: " + row.skipped if row.skipped else "BROKEN" if row.broken else "kept"
    return f"{row.scenario.replace('_', ' ')}: {how} ({row.seconds:.0f} s)" + "".join(
        f"\n    {sentence}" for sentence in row.broken
    )


# --- the report
# --------------------------------------------------------------------------------------------------------


def facts_of_rows(rows: list[Row]) -> dict:
    "The matrix as plain values."
    return {
        "scenarios": len(rows),
        "broken": sum(bool(row.broken) for row in rows),
        "skipped": sum(bool(row.skipped) for row in rows),
        "rows": [asdict(row) for row in rows],
    }


def facts_of_kills(chains: list[Chain], seed: int) -> dict:
    "The kills as plain values."
    again = [steps for chain in chains for steps in chain.steps_again]
    return {
        "seed": seed,
        "kills": sum(chain.total for chain in chains),
        "in_a_save": sum(chain.in_a_save for chain in chains),
        "in_a_start": sum(chain.in_a_start for chain in chains),
        "broken": sum(bool(chain.broken) for chain in chains),
        "steps_again": {"median": statistics.median(again), "most": max(again)} if again else {},
        "chains": [asdict(chain) for chain in chains],
    }


def facts_of_aimed(rows: list[Row]) -> dict:
    "The runs with aimed kills as plain values."
    return {
        "kills": sum(int(row.note.partition(" kills")[0]) for row in rows if " kills" in row.note),
        "broken": sum(bool(row.broken) for row in rows),
        "rows": [asdict(row) for row in rows],
    }


def facts_of_ends(rows: list[Row]) -> dict:
    "How often each way to end while predicting left what it should, as plain values."
    names = dict.fromkeys(row.scenario for row in rows)
    of = {name: [row for row in rows if row.scenario == name] for name in names}
    return {
        "broken": sum(bool(row.broken) for row in rows),
        "summary": {name: {"runs": len(found), "kept": sum(not r.broken for r in found)} for name, found in of.items()},
        "rows": [asdict(row) for row in rows],
    }


def facts_of_studies(rounds: list[Round]) -> dict:
    "The studies whose searches were killed as plain values."
    return {
        "kills": sum(found.kills.total() for found in rounds),
        "again": sum(found.again for found in rounds),
        "broken": sum(bool(found.broken) for found in rounds),
        "rounds": [
            {**asdict(found), "kills": dict(found.kills)} for found in rounds
        ],  # asdict counts pairs of a Counter
    }


def facts_of_deadlines(rows: list[Row]) -> dict:
    "The runs with a limit as plain values, by scenario."
    named = {
        name: [row for row in rows if row.scenario == name] for name in dict.fromkeys(row.scenario for row in rows)
    }
    return {
        "broken": sum(bool(row.broken) for row in rows),
        "rows": [asdict(row) for row in rows],
        "summary": {
            name: {
                "runs": len(found),
                "in_time": sum(row.late_s is not None and row.late_s <= 0 and not row.broken for row in found),
                "latest_s": max((row.late_s for row in found if row.late_s is not None), default=None),
                "median_late_s": statistics.median([row.late_s for row in found if row.late_s is not None] or [0]),
                "least_trained": min((row.trained for row in found if row.trained is not None), default=None),
            }
            for name, found in named.items()
        },
    }


def said(value: Any) -> str:
    "A value in a table's cell."
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    return ", ".join(value) or "nothing" if isinstance(value, (list, tuple)) else str(value).replace("|", "\\|")


def table(heads: list[str], rows: list[list[Any]]) -> str:
    "A table in markdown."
    return "\n".join("| " + " | ".join(map(said, row)) + " |" for row in [heads, ["---"] * len(heads), *rows]) + "\n"


def markdown(report: dict) -> str:
    "The report for people."
    text = ["# Faults", "", f"What `make faults` saw: {report['machine']}.", ""]
    if matrix := report.get("matrix"):
        text += [
            f"## {matrix['scenarios']} faults",
            "",
            f"{matrix['date']}, {matrix['seconds'] / 60:.0f} minutes. Promises that were broken: {matrix['broken']}; "
            f"faults that could not be made there: {matrix['skipped']}. *Again*: "
            "optimizer steps beyond the last whole checkpoint, which were done again. *Late*: "
            "seconds after the limit, negative for before. *Same*: every loss, "
            "every weight and the optimizer's state at the end are bit for bit "
            "those of the run that nothing happened to. *Stayed*: processes, locks, temporary files.",
            "",
            table(
                [
                    "fault",
                    "what has to happen",
                    "ranks",
                    "ended",
                    "again",
                    "model",
                    "late",
                    "same",
                    "stayed",
                    "kept",
                    "note",
                ],
                [
                    [
                        r["scenario"].replace("_", " "),
                        r["promise"],
                        r["ranks"],
                        r["status"],
                        r["lost_steps"],
                        r["usable_model"],
                        r["late_s"],
                        r["same"],
                        None if r["skipped"] else r["stayed"],
                        r["skipped"] or not r["broken"],
                        r["note"],
                    ]
                    for r in matrix["rows"]
                ],
            ),
        ]
        text += [
            f"- **{r['scenario'].replace('_', ' ')}**: {sentence}" for r in matrix["rows"] for sentence in r["broken"]
        ]
    if kills := report.get("kills"):
        kinds = dict.fromkeys(chain["kind"] for chain in kills["chains"])
        of = {kind: [chain for chain in kills["chains"] if chain["kind"] == kind] for kind in kinds}
        text += [
            "",
            f"## {kills['kills']} random kills",
            "",
            f"{kills['date']}, {kills['seconds'] / 60:.0f} minutes, seed {kills['seed']}. "
            "SIGKILL at a random moment, again and "
            f"again, until the run is done; {kills['in_a_save']} kills fell into a save, "
            f"{kills['in_a_start']} into a start. No checkpoint that was whole before "
            "a kill may be gone after it, and every run has to end as the one to which nothing happened. "
            f"Runs with a loss: {kills['broken']}.",
            "",
            table(
                ["run", "runs", "kills", "of whom", "in a save", "in a start", "steps again: most", "losses"],
                [
                    [
                        kind,
                        len(found),
                        sum(sum(c["kills"].values()) for c in found),
                        ", ".join(
                            f"{who} {sum(c['kills'].get(who, 0) for c in found)}"
                            for who in dict.fromkeys(who for c in found for who in c["kills"])
                        ),
                        sum(c["in_a_save"] for c in found),
                        sum(c["in_a_start"] for c in found),
                        max((s for c in found for s in c["steps_again"]), default=0),
                        sum(len(c["broken"]) for c in found),
                    ]
                    for kind, found in of.items()
                ],
            ),
        ]
        text += [
            f"- **{chain['kind']}, seed {chain['seed']}**: {sentence}"
            for chain in kills["chains"]
            for sentence in chain["broken"]
        ]
    if aimed_kills := report.get("aimed"):
        text += [
            "",
            f"## {aimed_kills['kills']} aimed kills",
            "",
            f"{aimed_kills['date']}, {aimed_kills['seconds'] / 60:.0f} minutes. Two ranks; in each run three kills in "
            "start-ups, three in evaluations and up to four at certain calls to the disk in saves, of either rank. "
            f"Each run has to end as the one to which nothing happened. Runs with a loss: {aimed_kills['broken']}.",
            "",
            table(
                ["run", "ended", "again", "same", "stayed", "kept", "note"],
                [
                    [
                        r["scenario"].replace("_", " "),
                        r["status"],
                        r["lost_steps"],
                        r["same"],
                        r["stayed"],
                        not r["broken"],
                        r["note"],
                    ]
                    for r in aimed_kills["rows"]
                ],
            ),
        ]
        text += [
            f"- **{r['scenario'].replace('_', ' ')}**: {sentence}"
            for r in aimed_kills["rows"]
            for sentence in r["broken"]
        ]
    if deadlines := report.get("deadlines"):
        text += [
            "",
            "## In time",
            "",
            f"{deadlines['date']}, {deadlines['seconds'] / 60:.0f} minutes, {deadlines['parallel']} at a time, "
            f"seed {deadlines['seed']}. "
            '`fit(…, predict="submission.csv")` on two ranks with a limit of 120 s, an evaluation of 5 s, '
            "predictions of 6 s.",
            "",
            table(
                ["run", "runs", "in time, with its submission", "latest (s)", "median (s)", "least trained"],
                [
                    [
                        name.replace("_", " "),
                        s["runs"],
                        s["in_time"],
                        s["latest_s"],
                        s["median_late_s"],
                        "–" if s["least_trained"] is None else f"{s['least_trained']:.0%}",
                    ]
                    for name, s in deadlines["summary"].items()
                ],
            ),
            "",
            table(
                ["run", "late (s)", "trained", "ended", "note"],
                [
                    [
                        r["scenario"].replace("_", " "),
                        r["late_s"],
                        "–" if r["trained"] is None else f"{r['trained']:.0%}",
                        r["status"],
                        r["note"],
                    ]
                    for r in deadlines["rows"]
                ],
            ),
        ]
        text += [
            f"- **{r['scenario'].replace('_', ' ')}**: {sentence}"
            for r in deadlines["rows"]
            for sentence in r["broken"]
        ]
    if ends := report.get("ends"):
        text += [
            "",
            "## While two ranks predict",
            "",
            f"{ends['date']}, {ends['seconds'] / 60:.0f} minutes, {ends['parallel']} at a time. "
            '`fit(…, predict="submission.csv")` on two ranks, ended in each of these ways.',
            "",
            table(
                ["run", "runs", "in time, with a right submission"],
                [[name.replace("_", " "), s["runs"], s["kept"]] for name, s in ends["summary"].items()],
            ),
        ]
        text += [
            f"- **{r['scenario'].replace('_', ' ')}**: {sentence}" for r in ends["rows"] for sentence in r["broken"]
        ]
    if chains := report.get("chains"):
        rows, summary = chains["rows"], chains["summary"]
        text += [
            "",
            "## From an empty account to a score",
            "",
            f"{chains['date']}, {chains['seconds'] / 60:.0f} minutes. `kaggle init`, `check`, `up` and `submit`, "
            "with a client that answers as Kaggle's does and the sealed simulator behind it; a command that fails is "
            "typed again. "
            f"{sum(not r['broken'] for r in rows)} of {len(rows)} ended with a submission that was scored.",
            "",
            table(
                ["what goes wrong", "chains", "with a right submission"],
                [
                    [rows_of[0]["promise"], s["runs"], s["kept"]]
                    for name, s in summary.items()
                    if (rows_of := [r for r in rows if r["scenario"] == name])
                ],
            ),
        ]
        text += [f"- **{r['scenario']}**: {sentence}" for r in rows for sentence in r["broken"]]
    if studies := report.get("studies"):
        text += ["", *_lines_of_studies(studies)]
    return "\n".join(text).rstrip() + "\n"


def _lines_of_studies(studies: dict) -> list[str]:
    "The part of the report on killed searches."
    rounds = studies["rounds"]
    return [
        f"## {studies['kills']} kills of searches",
        "",
        f"{studies['date']}, {studies['seconds'] / 60:.0f} minutes, seed {studies['seed']}. Two searches share each of "
        f"{len(rounds)} studies; SIGKILL to one or both at a random moment, to all its processes or to its own alone, "
        "and they are begun again. Each point of the grid has to be told once, with the value of a study to which "
        f"nothing happened, and no process may stay. Studies with a loss: {studies['broken']}.",
        "",
        table(
            ["study", "kills", "trials queued again", "seconds", "kept"],
            [
                [
                    f"seed {found['seed']}",
                    ", ".join(f"{count} × {kind}" for kind, count in found["kills"].items()),
                    found["again"],
                    found["seconds"],
                    not found["broken"],
                ]
                for found in rounds
            ],
        ),
        *(f"- **seed {found['seed']}**: {sentence}" for found in rounds for sentence in found["broken"]),
    ]
