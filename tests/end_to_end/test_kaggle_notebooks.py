"""What is pushed to Kaggle and opened in Colab: the metadata, the notebooks from one session to the next, and the task
that learns from a table.
"""

import ast
import json
import os
import re
import shutil
import warnings
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
import torch
from test_tutorials import cells

import coffee_table
import example_sets
import helpers
import notebooks
import spectrakit as sk
from spectrakit.runs.history import outline
from spectrakit.runs.run_dir import find_runs, read_environment
from spectrakit.tasks.table.columns import folds_of
from spectrakit.tasks.table.table import Table
from test_house import PATH_IN_OUTPUT

root = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted(root.glob("kaggle/*/*.ipynb"))
KERNELS = sorted(root.glob("kaggle/*/kernel-metadata.json"))


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    "Nothing in the environment says where this is."
    for name in filter(helpers.foreign, list(os.environ)):
        monkeypatch.delenv(name)


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.parent.name)
def test_a_notebook_installs_the_kit_as_the_tutorials_do(path):
    first, second = cells(path)[:2]
    assert re.match(r"# \S.*\n\n> \S", first["source"])
    assert second["source"] == notebooks.install_cell()
    for cell in cells(path):
        if cell["cell_type"] == "code":
            ast.parse(cell["source"])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.parent.name)
def test_outputs_are_those_of_any_machine(path):
    code = [cell for cell in cells(path) if cell["cell_type"] == "code"]
    assert any(cell["outputs"] for cell in code)
    for cell in code:
        if cell["source"].startswith(notebooks.MACHINE):
            assert cell["outputs"] == []
        for output in cell["outputs"]:
            assert output["output_type"] != "error"
            shown = {key: value for key, value in output.get("data", {}).items() if not key.startswith("image/png")}
            assert not PATH_IN_OUTPUT.search(json.dumps([output.get("text"), shown])), cell["source"]


FIELDS = {
    "id",
    "id_no",
    "title",
    "code_file",
    "language",
    "kernel_type",
    "is_private",
    "enable_gpu",
    "enable_tpu",
    "enable_internet",
    "machine_shape",
    "keywords",
    "dataset_sources",
    "competition_sources",
    "kernel_sources",
    "model_sources",
    "docker_image",
    "docker_image_pinning_type",
}


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.parent.name)
def test_metadata_leave_nothing_to_a_default(path):
    told = json.loads(path.read_text(encoding="utf-8"))
    assert set(told) == FIELDS
    owner, _, slug = told["id"].partition("/")
    assert owner == "INSERT-YOUR-NAME" and slug == told["title"].replace(" ", "-") and 5 <= len(told["title"]) <= 50
    assert (
        (path.parent / told["code_file"]).is_file() and told["enable_internet"] is False and told["is_private"] is True
    )
    assert told["machine_shape"] == ("NvidiaTeslaT4" if told["enable_gpu"] else "")
    sources = told["dataset_sources"] + told["kernel_sources"]
    assert (
        all(name.startswith("INSERT-YOUR-NAME/") for name in sources)
        and "INSERT-YOUR-NAME/spectrakit-wheels" in sources
    )


def test_every_kernel_that_is_a_source_is_here():
    told = [json.loads(path.read_text(encoding="utf-8")) for path in KERNELS]
    assert len(told) == 10 and {name for one in told for name in one["kernel_sources"]} < {one["id"] for one in told}


@pytest.mark.parametrize("folder", [path.parent for path in KERNELS], ids=lambda folder: folder.name)
def test_the_check_before_a_push_finds_only_that_owner_and_wheels_are_missing(folder, tmp_path, monkeypatch):
    from spectrakit.kaggle.check import check_kernel

    monkeypatch.chdir(tmp_path)
    found = {finding.about: finding.level for finding in check_kernel(folder).findings if finding.level != "ok"}
    assert found["wheels"] == "warning" and [about for about, level in found.items() if level == "error"] == ["owner"]
    assert "clean" not in found


@pytest.mark.slow
def test_the_table_of_coffee_is_the_same_every_time(tmp_path):
    one, other = (coffee_table.write(tmp_path / name, owner="ada") for name in ("one", "other"))
    assert [file.read_bytes() for file in one] == [file.read_bytes() for file in other]
    train, test, sample = (pd.read_csv(file) for file in one[:3])
    assert (
        len(train) + len(test) == 60
        and set(train.columns) - set(test.columns) == {"origin"}
        and not set(train["id"]) & set(test["id"])
    )
    assert list(sample.columns) == ["id", *sorted(set(train["origin"]))] and list(sample["id"]) == list(test["id"])
    assert json.loads(one[3].read_text())["id"] == "ada/coffee-table"


# --- a table, and what may be odd in it -------------------------------------------------------------------------------


def tables(rows: int = 60, asked: int = 10) -> dict[str, pd.DataFrame]:
    "Train, test and sample submission: two numbers, a category, two classes."
    rng = np.random.default_rng(0)

    def some(n: int, first: int) -> pd.DataFrame:
        return pd.DataFrame(
            {
                "id": range(first, first + n),
                "a": rng.normal(size=n),
                "b": 1e12 + 1e9 * rng.normal(size=n),
                "c": rng.choice(["x", "y", "z"], n),
            }
        )

    train, test = some(rows, 0), some(asked, 1000)
    return {
        "train": train.assign(y=np.where(train["a"] > 0, "up", "down")),
        "test": test,
        "sample_submission": pd.DataFrame({"id": test["id"], "y": "up"}),
    }


def put(folder: Path, given: dict) -> Path:
    "Write tables, or plain bytes, into `folder`."
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in given.items():
        if isinstance(table, bytes):
            (folder / f"{name}.csv").write_bytes(table)
        else:
            table.to_csv(folder / f"{name}.csv", index=False)
    return folder


def answered(folder: Path, *words: str) -> tuple[Table, pd.DataFrame, str]:
    """A task on `folder`, the submission of its untrained model, and what it tells.

    Loss and metrics are finite, and the sample's columns are kept.
    """
    task, cfg = Table(folder), sk.compose(*words)
    told = task.describe(cfg)
    torch.manual_seed(0)
    model = task.model(cfg).eval()
    train, valid = task.datasets(cfg)
    with torch.inference_mode():
        assert torch.isfinite(task.loss(model, train.tensors))
        if valid is not None:
            assert all(
                np.isfinite(value)
                for value in task.metrics_all(task.predict(model, valid.tensors), valid.tensors[1]).values()
            )
        table = task.submission(task.predict(model, task.test_dataset(cfg).tensors).numpy())
    assert list(table.columns) == list(pd.read_csv(folder / "sample_submission.csv").columns) and table.notna().all(
        axis=None
    )
    return task, table, told


@pytest.mark.slow
def test_labels_probabilities_and_numbers_as_the_sample_submission_asks(tmp_path):
    t, n = tables(), iter(range(99))

    def asked(y, sample: dict, *words):
        given = {
            **t,
            "train": t["train"].drop(columns="y").assign(**y),
            "sample_submission": pd.DataFrame({"id": t["test"]["id"], **sample}),
        }
        return answered(put(tmp_path / str(next(n)), given), *words)[1].drop(columns="id")

    zero_one = {"y": [0, 1] * 30}
    assert set(asked({"y": ["up", "down"] * 30}, {"y": "up"})["y"]) <= {"up", "down"}
    assert set(asked(zero_one, {"y": 0})["y"]) <= {0, 1}
    for odds in (asked(zero_one, {"y": 0.5}), asked(zero_one, {"y": 0}, "task.answer=probability")):
        assert odds["y"].between(0.01, 0.99).all()
    assert set(asked({"y": [1, 2, None] * 20}, {"y": 1})["y"]) <= {1, 2}, (
        "whole numbers stay whole where some are missing"
    )
    assert set(map(str, asked({"y": [True, False] * 30}, {"y": False})["y"])) <= {"True", "False"}
    assert asked({"y": np.linspace(1e6, 2e6, 60)}, {"y": 0.0})["y"].between(5e5, 3e6).all()
    for names in (["w", "u", "v"], ["y_w", "y_u", "y_v"]):
        odds = asked({"y": ["u", "v", "w"] * 20}, dict.fromkeys(names, 0.3))
        assert list(odds.columns) == names and np.allclose(odds.sum(axis=1), 1, atol=1e-5)
    assert asked({"y": range(60), "z": np.linspace(0, 1, 60)}, {"z": 0.0, "y": 0.0}).columns.tolist() == ["z", "y"]
    assert asked({"y": [0, 1] * 30, "z": [1, 1, 0] * 20}, {"z": 0.5, "y": 0.5}).max(axis=None) < 1


def test_what_cannot_be_learned_from_is_left_out_and_told(tmp_path):
    t = tables()
    t["train"] = t["train"].assign(empty=np.nan, same=5, names=[f"n{i}" for i in range(60)], casual=1.0)
    t["train"].loc[::7, "a"], t["train"].loc[3, "y"] = np.nan, None
    t["test"] = t["test"].assign(empty=1.0, same=6, names="new")
    t["test"]["b"] = t["test"]["b"].astype(object)
    t["test"].loc[2, "b"] = "oops"
    task, _table, told = answered(put(tmp_path / "odd", t), "task.max_categories=20")
    notes = [line.removeprefix("note      ") for line in told.splitlines() if line.startswith("note")]
    assert len(notes) == 6
    for part in (
        "1 rows of train.csv",
        "left out, because test.csv lacks them: 'casual'",
        "'empty' is left out: it has no value",
        "'same' is left out: it is constant (5)",
        "'names' is left out: it has",
        "'b' of test.csv has 1 text among its numbers, such as 'oops'",
    ):
        assert any(part in note for note in notes), (part, notes)
    settings = sk.compose("task.max_categories=20")
    known, asked = task.training(settings), task.test_rows(settings)
    columns = known.recipe.columns
    assert columns.numbers == ["a", "b"] and columns.gaps == ["a"] and list(columns.levels) == ["c"]
    seen = known.x[~known.held_out]
    assert abs(seen[:, 1].mean()) < 1e-5 and abs(seen[:, 1].std() - 1) < 0.02, "normal scores of what is trained on"
    assert asked.x[2, 1] == 0 and np.abs(known.x).max() <= 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words", "sentence"),
    [
        ({"train": b""}, (), "train.csv is empty"),
        ({"train": tables()["train"][:0]}, (), "train.csv has no rows"),
        ({"train": b"a,b\n1,2,3,4\n1,2,3,4,5\n"}, (), "train.csv cannot be read as a table"),
        ({"train": b"id;x;y\n1;2;3\n"}, (), "its values are separated by ';'. Write it with commas"),
        (
            {"train": tables()["train"].drop(columns="y")},
            (),
            "The training table has no target: the sample submission has 'y'",
        ),
        ({"train": tables()["train"].rename(columns={"y": "label"})}, (), "set task.target=label"),
        ({"train": tables()["train"].assign(y="up")}, (), "The target 'y' has only one value"),
        (
            {"train": tables()["train"].assign(y=[f"n{i}" for i in range(60)])},
            (),
            "60 different values in 60 rows, such as 'n0', too many for classes",
        ),
        (
            {"train": tables()["train"].assign(a=["1", "oops", *["2.5"] * 58])},
            (),
            "mixes text and numbers: 'oops' in row 2 (1 of 60)",
        ),
        (
            {"train": tables()["train"].assign(a=None, b=None, c=None)},
            (),
            "No column is left to learn from. 'a' is left out",
        ),
        (
            {"test": tables()["test"].rename(columns={"a": "d", "b": "e", "c": "f"})},
            (),
            "have no common column to learn from",
        ),
        ({"test": tables()["test"].assign(a="q")}, (), "'a' of test.csv holds text, such as 'q'"),
        ({"test": tables()["test"].assign(id=7)}, (), "9 ids of test.csv are duplicates, such as 7"),
        ({"sample_submission": tables()["sample_submission"][["id"]]}, (), "has no column besides 'id'"),
        ({}, ("task.target=yy",), "Did you mean 'y'?"),
        ({}, ("task.group=gg",), "task.group=gg is not a column"),
        ({}, ("task.drop=[cc]",), "not a column of train.csv"),
        ({}, ("task.fold=5",), "an integer from -1 to 4"),
        ({}, ("task.kind=numbers",), "the target 'y' holds 'down'"),
        ({}, ("task.net=cnv",), "Did you mean 'conv'?"),
        ({}, ("task.net=conv",), "only 2 numbers"),
        ({}, ("task.dropout=1.5",), "task.dropout=1.5"),
        ({}, ("task.data=nowhere",), "No input 'nowhere' was found"),
    ],
)
def test_a_table_that_cannot_be_used_is_answered_with_a_sentence(tmp_path, change, words, sentence):
    folder = put(tmp_path / "tables", {**tables(), **change})
    with warnings.catch_warnings(), pytest.raises(sk.RequestError) as told:
        warnings.simplefilter("error")
        answered(folder, *words)
    assert sentence in str(told.value) and str(told.value).count(". ") >= 1, told.value


@pytest.mark.parametrize("gone", ["train", "test", "sample_submission"])
def test_a_missing_table_is_named(tmp_path, gone):
    folder = put(tmp_path / "tables", {name: table for name, table in tables().items() if name != gone})
    with pytest.raises(sk.RequestError, match=f"no table '{gone.replace('_', ' ')}'"):
        Table(folder).describe(sk.compose())


def test_the_submission_has_the_samples_order_or_else_the_tests(tmp_path):
    t = tables()
    backwards = put(tmp_path / "backwards", {**t, "sample_submission": t["sample_submission"][::-1]})
    assert list(answered(backwards)[1]["id"]) == list(t["test"]["id"])[::-1]
    hidden = put(
        tmp_path / "hidden", {**t, "sample_submission": t["sample_submission"][:3]}
    )  # a rerun has another test than the sample says
    _, table, told = answered(hidden)
    assert list(table["id"]) == list(t["test"]["id"]) and "has other ids than test.csv" in told


def test_groups_and_doubled_ids_stay_on_one_side_and_classes_are_dealt_out():
    rng = np.random.default_rng(1)
    groups, targets = rng.integers(0, 25, 200), rng.integers(0, 2, 200)
    fold = folds_of(targets, groups.astype(object), 5)
    assert all(len(set(fold[groups == g])) == 1 for g in set(groups)) and min(np.bincount(fold)) >= 25
    assert all(abs(targets[fold == f].mean() - targets.mean()) < 0.15 for f in range(5))
    alone = folds_of(targets, None, 5)
    assert np.ptp([targets[alone == f].sum() for f in range(5)]) <= 1


def test_rows_of_one_id_are_a_group(tmp_path):
    t = tables()
    folder = put(tmp_path / "doubled", {**t, "train": t["train"].assign(id=[i // 3 for i in range(60)])})
    held = answered(folder, "task.fold=0")[0].training(sk.compose("task.fold=0")).held_out
    assert len(set(map(tuple, held.reshape(20, 3)))) == 2, "three rows of one id are held out together or not at all"


def test_parquet_says_the_same_as_csv(tmp_path):
    pytest.importorskip("pyarrow", reason="Parquet needs pyarrow, which Kaggle and Colab have")
    t = tables()
    (tmp_path / "parquet").mkdir()
    for name, table in t.items():
        table.to_parquet(tmp_path / "parquet" / f"{name}.parquet", index=False)
    one, other = (Table(folder).training(sk.compose()) for folder in (tmp_path / "parquet", put(tmp_path / "csv", t)))
    assert np.array_equal(one.x, other.x) and np.array_equal(one.y, other.y)


def test_weights_for_other_columns_are_refused_in_words(tmp_path):
    t, cfg = tables(), sk.compose()
    then = Table(put(tmp_path / "then", t)).model(cfg).state_dict()

    def now(**change):
        return Table(put(tmp_path / str(len(list(tmp_path.iterdir()))), {**t, **change})).model(cfg)

    now().load_state_dict(then)
    with pytest.raises(RuntimeError, match="other columns than in training: 'b' gone"):
        now(test=t["test"].drop(columns="b")).load_state_dict(then)
    with pytest.raises(RuntimeError, match="the training table or its split differs from that of the run"):
        now(train=t["train"].assign(a=t["train"]["a"] + 1)).load_state_dict(then)


def test_the_slug_of_an_input_is_found_in_both_layouts(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECTRAKIT_INPUT", str(tmp_path))
    for place in ("soil", "datasets/ada/soil", "competitions/soil/data"):
        put(tmp_path / place, tables())
        assert "60 to learn from" in Table("soil").describe(sk.compose())
        shutil.rmtree(tmp_path / place.split("/")[0])


# --- two processes, and one session after the other -------------------------------------------------------------------


@pytest.mark.slow
def test_two_processes_learn_from_a_table(tmp_path):
    put(tmp_path / "data" / "soil", tables())
    words = [
        "task.data=soil",
        "trainer.accelerator=cpu",
        "trainer.devices=2",
        "trainer.max_epochs=6",
        "data.batch_size=8",
        "optimizer.lr=0.01",
    ]
    done = helpers.run_cli(tmp_path, "train", "table", *words, "--predict", "submission.csv")
    assert done.returncode == 0, done.stderr
    run = sk.open_run(helpers.only_run(tmp_path))
    assert "may need all predictions" not in (run.path / "events.jsonl").read_text()  # one batch can be answered
    assert (
        json.loads((run.path / "summary.json").read_text())["launch"]["world_size"] == 2
        and run.metrics["val_accuracy"] > 0.7
    )
    answers = pd.read_csv(tmp_path / "submission.csv")
    assert list(answers.columns) == ["id", "y"]
    (tmp_path / "data" / "soil" / "train.csv").unlink()  # the checkpoint says how its inputs were made
    again = helpers.run_cli(tmp_path, "predict", str(run.path), "--out", "again.csv")
    assert again.returncode == 0, again.stderr
    assert pd.read_csv(tmp_path / "again.csv").equals(answers)


def play(path: Path, folder: Path, told: dict, more: str = "") -> nbformat.NotebookNode:
    "Run a notebook as a session in `folder`; `more`: settings written into its line MORE, as its user would."
    folder.mkdir()
    environ = helpers.clean_environ()
    here = {
        "SPECTRAKIT_OVERRIDES": "env=local trainer.accelerator=cpu launch.mode=inline",
        "PYTHONPATH": str(root),
        **told,
    }
    notebook = nbformat.read(path, as_version=4)
    if more:
        (cell,) = (cell for cell in notebook.cells if 'MORE = "' in cell.source)
        cell.source = cell.source.replace('MORE = "', f'MORE = "{more} ')
    return notebooks.played(notebook, folder, {**dict.fromkeys(set(os.environ) - set(environ), ""), **here})


def up_to(steps: int) -> str:
    "Settings of a session that has time for so many optimizer steps in all; what a clock does is tested elsewhere."
    return (
        f"env=local trainer.accelerator=cpu launch.mode=inline trainer.max_steps={steps} "
        "resume.allow=[trainer.max_steps]"
    )


@pytest.mark.slow
@pytest.mark.long  # in a sealed Kaggle: test_kaggle_sim.py
def test_a_session_the_next_one_and_the_one_that_predicts(tmp_path):
    """The second session finds the first one's output among its inputs, and goes on with a copy; the last one writes
    the submission.
    """
    inputs = tmp_path / "input"
    coffee_table.write(inputs / "datasets" / "ada" / "coffee-table")
    told, reached = {"SPECTRAKIT_INPUT": str(inputs)}, []
    for number, slug in enumerate(("spectrakit-train", "spectrakit-train-on"), 1):
        play(
            root / "kaggle" / "train" / "train.ipynb",
            tmp_path / slug,
            told,
            up_to(6 * number),
        )
        (path,) = find_runs(tmp_path / slug)
        reached.append(outline(path, hashes=True))
        assert reached[-1].step == 6 * number and len(read_environment(path).get("sessions") or [0]) == number
        manifest = json.loads((tmp_path / slug / "output-manifest.json").read_text())
        assert f"{path.relative_to(tmp_path / slug).as_posix()}/config.yaml" in {
            file["path"] for file in manifest["files"]
        }
        shutil.copytree(tmp_path / slug, inputs / "notebooks" / "ada" / slug)
    assert reached[0].run_id == reached[1].run_id
    stored = helpers.tree_hashes(inputs / "notebooks" / "ada" / "spectrakit-train")
    play(root / "kaggle" / "infer" / "infer.ipynb", tmp_path / "infer", told)
    submission, sample = (
        pd.read_csv(file)
        for file in (
            tmp_path / "infer" / "submission.csv",
            inputs / "datasets" / "ada" / "coffee-table" / "sample_submission.csv",
        )
    )
    assert list(submission.columns) == list(sample.columns) and list(submission["id"]) == list(sample["id"])
    assert np.allclose(submission.drop(columns="id").sum(axis=1), 1, atol=1e-4)
    assert stored == helpers.tree_hashes(inputs / "notebooks" / "ada" / "spectrakit-train"), (
        "the run that was not the furthest was not touched"
    )


@pytest.mark.slow
def test_ariel_leaves_a_complete_submission_though_a_planet_is_broken(tmp_path):
    "The kernel that does all, on simulated frames. In a sealed Kaggle: test_kaggle_sim.py."
    pytest.importorskip("pyarrow", reason="the extra `ariel` is not installed")
    pytest.importorskip("scipy", reason="the extra `ariel` is not installed")
    from spectrakit.tasks.ariel.simulate import Instrument, simulate

    data = tmp_path / "input" / "competitions" / "ariel-data-challenge-2025"
    simulate(data, (6, 3), Instrument(pairs=(24, 288)))
    signal = data / "test" / "1049" / "FGS1_signal_0.parquet"
    signal.write_bytes(signal.read_bytes()[:999])
    here = tmp_path / "working"
    played = play(root / "kaggle" / "ariel" / "ariel.ipynb", here, {"SPECTRAKIT_INPUT": str(tmp_path / "input")})
    assert "Planet 1049 of test" in json.dumps(played.cells)
    submission, sample = pd.read_csv(here / "submission.csv"), pd.read_csv(data / "sample_submission.csv")
    assert list(submission.columns) == list(sample.columns)
    assert list(submission["planet_id"]) == list(sample["planet_id"]) and np.isfinite(submission).all(axis=None)
    assert submission.set_index("planet_id")["sigma_1"].idxmax() == 1049, "the baseline is the least certain"
    kept = [path.name for path in here.glob("estimates/*/*.npz")]
    assert len(kept) == 2, "one file of estimates for each split"


@pytest.mark.long
@pytest.mark.slow
def test_a_language_model_is_fine_tuned_in_two_sessions_and_exported(tmp_path):
    "The second session finds the run of the first among its inputs, goes on, and exports what `from_pretrained` loads."
    transformers = pytest.importorskip("transformers", reason="language models need the extra lm")
    inputs = tmp_path / "input"
    for name in ("model", "texts"):
        folder = example_sets.write(name, inputs / "datasets" / "ada" / example_sets.slug(name))
        again = example_sets.write(name, tmp_path / "again" / name)
        assert helpers.tree_hashes(folder) == helpers.tree_hashes(again)
    told, ends = {"SPECTRAKIT_INPUT": str(inputs)}, []
    for steps, slug in ((6, "first"), (30, "second")):
        play(root / "kaggle" / "lm" / "lm.ipynb", tmp_path / slug, told, up_to(steps))
        (path,) = find_runs(tmp_path / slug)
        ends.append(outline(path, hashes=True))
        assert ends[-1].step == steps
        shutil.copytree(tmp_path / slug, inputs / "notebooks" / "ada" / slug)
    assert ends[0].run_id == ends[1].run_id
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "second" / "my-model")
    first = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "first" / "my-model")
    assert any(not torch.equal(one, other) for one, other in zip(model.parameters(), first.parameters(), strict=True))
    completions = pd.read_csv(tmp_path / "second" / "samples.csv")["completion"]
    assert len(completions) and set(" ".join(completions.fillna("")).split()) <= set(example_sets.WORDS)


@pytest.mark.long  # Colab in the simulator
@pytest.mark.slow
def test_colab_goes_on_with_the_copy_on_drive_when_its_disk_is_gone(tmp_path):
    notebook, drive, runs = root / "kaggle" / "colab" / "train.ipynb", tmp_path / "drive", []
    for steps in (3, 5):
        words = f"{up_to(steps)} task.views=2 data.batch_size=16"
        play(notebook, tmp_path / "content", {"SPECTRAKIT_DRIVE": str(drive), "SPECTRAKIT_OVERRIDES": words})
        (kept,) = find_runs(drive / "spectrakit" / "runs")
        runs.append(outline(kept, hashes=True))
        shutil.rmtree(tmp_path / "content")
    assert [found.step for found in runs] == [3, 5] and runs[0].run_id == runs[1].run_id
    assert (drive / "spectrakit" / "predictions.csv").is_file()


@pytest.mark.slow
def test_each_fold_of_a_table_holds_out_rows_of_its_own(tmp_path, monkeypatch):
    "The task divides its rows itself, differently for each fold."
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "soil", tables())
    words = (f"task.data={tmp_path / 'soil'}", "trainer.accelerator=cpu", "trainer.max_epochs=1")
    cv = sk.cross_validate("table", *words, "data.micro_batch_size=8", folds=3, show=False)
    assert cv.status == "completed" and len(cv.values) == 60
    held = {read_environment(run.path)["decided"]["data"]["valid"]["content"]["all"] for run in cv.runs}
    assert len(held) == 3
