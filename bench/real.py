"""Write the page of what ran on the real Kaggle and on the real Colab: `python bench/real.py [REPORT ...]`.

A REPORT is the `report-acceptance.json` that `kaggle/acceptance` leaves; without one it is that of the last
`spectrakit kaggle up kaggle/acceptance`. Each replaces the earlier report of its platform in `bench/real.json`, and
`bench/real.md` is written from all of them. The exit status is 1 if a check failed.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LAST = HERE.parent / "kaggle" / "acceptance" / "output"
NAME = "report-acceptance.json"
OUTCOMES = ("failed", "passed", "not run")


def read_report(path: Path) -> dict[str, Any]:
    "Return a report. SystemExit, with a sentence, if the file holds none."
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        rows = report["rows"] if report["schema"] == 1 else []
        right = all(row["outcome"] in OUTCOMES and {"name", "expected", "found", "seconds"} <= set(row) for row in rows)
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"{path} is no report of kaggle/acceptance: {type(error).__name__}: {error}. Fetch it anew.")
    if not (rows and right):
        sys.exit(f"{path} is no report of kaggle/acceptance: its rows are of another form. Fetch it anew.")
    return report


def find_reports(given: list[Path]) -> list[Path]:
    "Return the files that were given, or those below the output of the last push. SystemExit if there is none."
    found = given or sorted(LAST.rglob(NAME))
    if not found:
        sys.exit(f"There is no {NAME} below {LAST}. Push it: spectrakit kaggle up kaggle/acceptance --owner NAME")
    return found


def cell(value: Any) -> str:
    "Return a value as the cell of a table."
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return " ".join(text.split()).replace("|", "\\|")


def section(report: dict[str, Any]) -> list[str]:
    "Return the lines of the page about one report: what failed comes first, tracebacks come last."
    rows = sorted(report["rows"], key=lambda row: OUTCOMES.index(row["outcome"]))
    count = Counter(row["outcome"] for row in rows)
    gpus = ", ".join(report.get("gpus", [])) or "no GPU"
    lines = [
        f"## {report.get('platform')}, {report.get('mode')}: {count['passed']} passed, {count['failed']} failed, "
        f"{count['not run']} not run",
        "",
        f"{report.get('began')} UTC, {report.get('seconds', 0) / 60:.1f} min, {gpus}, Python {report.get('python')}, "
        f"spectrakit {report.get('kit')}.",
        "",
        "| | check | expected | found | s |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        outcome = f"**{row['outcome']}**" if row["outcome"] == "failed" else row["outcome"]
        words = (outcome, cell(row["name"]), cell(row["expected"]), cell(row["found"]), row["seconds"])
        lines.append(f"| {' | '.join(map(str, words))} |")
    for row in rows:
        if row.get("traceback"):
            lines += ["", f"### {row['name']}", "", "```", row["traceback"].rstrip().replace("```", "'''"), "```"]
    return [*lines, ""]


def write_page(reports: dict[str, dict[str, Any]], folder: Path) -> Path:
    "Write real.json and real.md into `folder`; return the page."
    (folder / "real.json").write_text(json.dumps(reports, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    lines = [
        "# On the real platforms",
        "",
        "Written by `python bench/real.py` from reports of `kaggle/acceptance`.",
        "",
    ]
    lines += [line for _, report in sorted(reports.items()) for line in section(report)]
    page = folder / "real.md"
    page.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    return page


def main() -> int:
    "Write the page; return the exit status."
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="*", type=Path, metavar="REPORT")
    parser.add_argument("--out", type=Path, default=HERE, help="the folder for real.json and real.md; default: bench/")
    options = parser.parse_args()
    known = options.out / "real.json"
    reports = json.loads(known.read_text(encoding="utf-8")) if known.is_file() else {}
    new = [read_report(path) for path in find_reports(options.reports)]
    for report in new:
        reports[f"{report.get('platform')}, {report.get('mode')}"] = report
    page = write_page(reports, options.out)
    failed = [row["name"] for report in new for row in report["rows"] if row["outcome"] == "failed"]
    print(f"{page}: {'failed: ' + ', '.join(failed) if failed else 'no check failed'}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
