"""The whole fault matrix: `python tools/faults.py`, or `make faults`. About an hour and a half; each part can be had
alone.

--matrix plays every scenario once; --kills N kills runs at random moments, N times at least; --aimed N kills one of
two ranks in start-ups, evaluations and saves, ten times in a run; --deadline N runs into a limit of two minutes 2 N
times; --ends N ends two ranks that predict N times in each of four ways; --chain N goes N times from an empty
account to a score, in the sealed simulator (with --case time only with that fault); --studies N kills the two
searches of N studies over and over. Without any of them: all seven, with 200 kills, 40 aimed ones, 20 runs of each
kind, 20 chains and 10 studies. The report goes to bench/faults.md and bench/faults.json, where a part that was not
run keeps its last result, and with --out RUN to RUN/faults/ as well. Exit status 1 where a promise was broken.
"""

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))


def tell(text: str) -> None:
    print(text, flush=True)


def machine() -> str:
    "What was used, without anybody's name for it."
    from importlib.metadata import version

    return (
        f"{os.cpu_count()} CPU cores, {platform.system()}, Python {platform.python_version()}, "
        f"torch {version('torch').partition('+')[0]}"
    )


def part(facts: dict, began: float, **more) -> dict:
    "A part of the report, with its date and how long it took."
    return {"date": date.today().isoformat(), "seconds": round(time.monotonic() - began, 1), **more, **facts}


def chain_part(count: int, seed: int, folder: Path, cases: list[str]) -> dict:
    "So many ways from an empty account to a score, with the kit installed from a wheel. `cases`: none for all."
    sys.path.insert(0, str(ROOT / "tools"))
    from faultlib import chains, matrix
    from kaggle_sim import sealed
    from wheel_env import built_wheel, environment_with

    if reason := sealed.why_not():
        sys.exit(f"--chain needs the sealed simulator: {reason}")
    began = time.monotonic()
    python = environment_with(built_wheel(folder / "wheel"), folder / "environment")
    rows = chains.chains(count, seed, folder, python, tell, cases or list(chains.FAULTS))
    tell(f"{sum(not row.broken for row in rows)} of {count} ended with a submission that was scored")
    return part(matrix.facts_of_ends(rows), began, seed=seed)


def with_other_cases(new: dict, known: dict | None) -> dict:
    "The chains' part of the report: cases that were not run keep their last result."
    known = known or {"rows": [], "summary": {}, "seconds": 0}
    kept = [row for row in known["rows"] if row["scenario"] not in new["summary"]]
    seconds = new["seconds"] + known["seconds"] * len(kept) / max(1, len(known["rows"]))
    return {
        **new,
        "seconds": round(seconds, 1),
        "broken": new["broken"] + sum(bool(row["broken"]) for row in kept),
        "summary": {name: of for name, of in known["summary"].items() if name not in new["summary"]} | new["summary"],
        "rows": kept + new["rows"],
    }


def main() -> None:
    from faultlib.chains import FAULTS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--matrix", action="store_true", help="every scenario")
    parser.add_argument(
        "--only", nargs="+", metavar="WORD", help="scenarios with one of these words in their name; writes no report"
    )
    parser.add_argument("--kills", type=int, metavar="N", help="so many random kills at least")
    parser.add_argument("--aimed", type=int, metavar="N", help="so many kills in start-ups, evaluations and saves")
    parser.add_argument(
        "--deadline", type=int, metavar="N", help="so many runs of two minutes, and as many with a hang"
    )
    parser.add_argument("--ends", type=int, metavar="N", help="so many runs of each way to end while predicting")
    parser.add_argument("--chain", type=int, metavar="N", help="so many ways from an empty account to a score")
    parser.add_argument("--case", action="append", default=[], choices=FAULTS, help="with --chain: only this")
    parser.add_argument("--studies", type=int, metavar="N", help="so many studies whose searches are killed")
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="for the random moments (default: the time; it is printed)"
    )
    parser.add_argument("--parallel", type=int, default=2, metavar="K", help="so many runs at a time (default 2)")
    parser.add_argument("--out", type=Path, metavar="RUN", help="a run's folder, which gets the report under faults/")
    parser.add_argument("--no-report", action="store_true", help="leave bench/ as it is")
    asked = parser.parse_args()
    parts = {"matrix": True, "kills": 200, "aimed": 40, "deadline": 20, "ends": 20, "chain": 20, "studies": 10}
    if not any(getattr(asked, name) for name in (*parts, "only")):
        vars(asked).update(parts)

    from faultlib import clocks, matrix
    from faultlib.aimed import runs_of
    from faultlib.kills import random_kills
    from faultlib.study_kills import study_kills

    folder, began, report = Path(tempfile.mkdtemp(prefix="faults-")), time.monotonic(), {}
    tell(f"seed {asked.seed}; everything happens in {folder}")
    if asked.matrix or asked.only:
        chosen = [
            one for one in matrix.scenarios() if not asked.only or any(word in one.__name__ for word in asked.only)
        ]
        report["matrix"] = part(matrix.facts_of_rows(matrix.play_all(chosen, folder, asked.parallel, tell)), began)
    if asked.kills:
        began = time.monotonic()
        report["kills"] = part(
            matrix.facts_of_kills(random_kills(asked.kills, asked.seed, folder, asked.parallel, tell), asked.seed),
            began,
        )
    if asked.aimed:
        began = time.monotonic()
        rows = matrix.play_all(runs_of(asked.aimed), folder / "aimed", asked.parallel, tell)
        report["aimed"] = part(matrix.facts_of_aimed(rows), began)
    if asked.deadline:
        began = time.monotonic()
        pairs = [
            (clocks.a_limit_of_two_minutes, clocks.a_limit_of_two_minutes_and_a_hang(asked.seed + n))
            for n in range(asked.deadline)
        ]
        rows = matrix.play_all(
            [one for pair in zip(*pairs, strict=False) for one in pair], folder / "deadline", asked.parallel, tell
        )
        report["deadlines"] = part(matrix.facts_of_deadlines(rows), began, parallel=asked.parallel, seed=asked.seed)
    if asked.ends:
        began = time.monotonic()
        rows = matrix.play_all(clocks.ENDS * asked.ends, folder / "ends", asked.parallel, tell)
        report["ends"] = part(matrix.facts_of_ends(rows), began, parallel=asked.parallel)
    if asked.chain:
        report["chains"] = chain_part(asked.chain, asked.seed, folder / "chains", asked.case)
    if asked.studies:
        began = time.monotonic()
        rounds = study_kills(asked.studies, asked.seed, folder / "studies", tell)
        report["studies"] = part(matrix.facts_of_studies(rounds), began, seed=asked.seed)

    places = [
        *([] if asked.only or asked.no_report else [ROOT / "bench"]),
        *([asked.out / "faults"] if asked.out else []),
    ]
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
        file = place / "faults.json"
        known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        whole = {**known, "machine": machine(), **report}
        if "chains" in report:
            whole["chains"] = with_other_cases(report["chains"], known.get("chains"))
        file.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        (place / "faults.md").write_text(matrix.markdown(whole), encoding="utf-8")
    broken = {name: facts["broken"] for name, facts in report.items() if facts["broken"]}
    for name, facts in report.items():
        tell(
            f"{name}: {(facts['broken'] and 'broken in ' + str(facts['broken'])) or 'every promise was kept'}, "
            f"{facts['seconds'] / 60:.1f} minutes"
        )
    if broken:
        sys.exit(f"what was left lies in {folder}")
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
