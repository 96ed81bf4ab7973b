"The command line: exit statuses, one line for a wrong request, help with examples, and what each command prints."

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import spectrakit
from helpers import SETTINGS, clean_environ, only_run, run_cli, task, tree_hashes, wait_for
from odd_runs import plain_run
from spectrakit.api.run import open_run
from spectrakit.checkpoint.store import checkpoints, find_checkpoint, verify
from spectrakit.cli.main import COMMANDS, main
from spectrakit.runs.events import columns, last_event, read_events
from spectrakit.view.picture import plot_curves
from spectrakit.view.terminal import TextView

COMMANDS = list(COMMANDS)
QUICK = ("launch.mode=inline", "trainer.accelerator=cpu", "trainer.max_steps=2", "data.batch_size=8")
slow = pytest.mark.slow


@pytest.fixture
def call(here, capsys):
    "A function that runs a command in this process: (exit status, stdout, stderr)."

    def run(*words) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            status = main([str(word) for word in words])
        except SystemExit as error:
            status = error.code
        return (status, *capsys.readouterr())

    return run


@pytest.fixture
def refused(call, here):
    "A function that runs a command which has to be refused: returns its one line. Nothing may be written or changed."

    def run(*words) -> str:
        before = tree_hashes(here)
        status, out, err = call(*words)
        assert (status, out) == (2, "") and err.count("\n") == 1 and err.startswith("spectrakit"), (status, out, err)
        assert tree_hashes(here) == before
        return err

    return run


# help, and how light the light commands are


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_helps_with_examples(call, command):
    status, out, err = call(command, "--help")
    assert (status, err) == (0, "") and out.startswith(f"usage: spectrakit {command}")
    examples = out.partition("examples:\n")[2].splitlines()
    assert examples and all(line.startswith(f"  spectrakit {command}") for line in examples if line)


def test_the_help_names_every_command_and_every_exit_status(call):
    status, out, err = call("--help")
    assert (status, err) == (0, "") and call() == call("-h") == call("help") == (0, out, "")
    assert all(re.search(rf"^  {command}  +\S", out, re.M) for command in COMMANDS)
    assert re.search(r"0 done.*1 the run failed.*2 the request was wrong.*130 interrupted", out)


@slow
@pytest.mark.parametrize(
    "words",
    [("--help",), ("train", "--help"), ("info",), ("profiles",), ("runs",), ("train", "no_such_task")],
    ids=" ".join,
)
def test_light_commands_import_no_torch(tmp_path, words):
    "`-X importtime` lists every module that Python imports."
    (tmp_path / "runs").mkdir()
    done = run_cli(tmp_path, *words, command=("-X", "importtime", "-m", "spectrakit"))
    imported = set(re.findall(r"^import time:.*\| +(\S+)$", done.stderr, re.M))
    assert done.returncode == (2 if "no_such_task" in words else 0) and "spectrakit.cli.main" in imported
    assert not {name.partition(".")[0] for name in imported} & {"torch", "accelerate", "pandas", "sklearn"}


@slow
def test_both_ways_to_start_it_say_the_same(tmp_path):
    script = Path(sys.executable).with_name("spectrakit")
    for words in (["--version"], ["--help"], ["profiles", "kaggle_safe"]):
        one = run_cli(tmp_path, *words)
        other = subprocess.run(
            [script, *words], cwd=tmp_path, env=clean_environ(), capture_output=True, text=True, timeout=120
        )
        assert (one.returncode, one.stdout, one.stderr) == (other.returncode, other.stdout, other.stderr)
        assert one.returncode == 0 and one.stdout and not one.stderr
    assert run_cli(tmp_path, "--version").stdout.strip() == spectrakit.__version__


def test_info_for_people_and_for_programs(call):
    status, out, err = call("info", "--json")
    told = json.loads(out)
    assert (status, err) == (0, "") and told["cores"] >= 1
    assert {"name", "mode", "memory_gib", "gpus", "session_start", "limit_s"} <= set(told)
    status, out, err = call("info")
    assert (status, err) == (0, "") and "CPU cores" in out and "session began" in out


@slow
def test_profiles_are_compared_and_one_is_shown_with_the_help_of_every_key(call, here):
    status, out, err = call("profiles")
    rows = {line.split()[0]: line for line in out.splitlines()}
    assert (status, err) == (0, "")
    assert {"profile", "ci_fast", "defaults", "kaggle", "kaggle_2xt4", "kaggle_safe", "←"} <= set(rows)
    assert "8h30m" in rows["kaggle_safe"] and "64" in rows["kaggle_safe"].split() and "20m" in rows["ci_fast"]
    status, out, err = call("profiles", "kaggle_safe")
    assert (status, err) == (0, "") and all("  # " in line for line in out.splitlines()[1:] if line.startswith("  "))
    (here / "mine.yaml").write_text(out)  # as its help proposes
    assert call("train", task("Line"), "--config", "mine.yaml", *QUICK)[0] == 0
    assert open_run(only_run(here)).config.watchdog.limit == "8h30m"


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_the_table_of_profiles_fits_a_terminal(call, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    table = call("profiles")[1].splitlines()
    head, end = (next(n for n, line in enumerate(table) if line.startswith(word)) for word in ("profile ", "←"))
    assert all(len(line) <= columns for line in table[head:end]) and "purpose" in table[head]


def test_profiles_stand_side_by_side_with_what_differs(call):
    status, out, err = call("profiles", "--compare", "kaggle_safe", "a100", "smoke")
    rows = [line.split("  ")[0] for line in out.splitlines()]
    assert (status, err) == (0, "") and rows[1:5] == ["purpose", "micro batch", "accumulation", "workers"]
    assert "trainer.compile" in rows and "environment" in rows
    status, out, err = call("profiles", "--compare", "kaggle_safe", "a100", "--json")
    assert json.loads(out)["a100"]["workers"] == "8"
    status, out, err = call("profiles", "--compare", "kaggle_safe", "a10")
    assert status == 2 and "There is no profile 'a10'" in err and "Did you mean" in err
    assert call("profiles", "--compare", "smoke")[0] == 2


@slow
def test_profiles_are_measured_side_by_side_with_a_task(call, here):
    words = ("profiles", "--compare", "smoke", "ci_fast", "--task", task("Line"), "--json")
    status, out, err = call(*words)
    found = json.loads(out)
    assert (status, err) == (0, "") and found["smoke"]["fits"] == found["ci_fast"]["fits"] == "yes"
    assert "–" in found["smoke"]["whole run"] and list(here.glob("*")) == []


def test_every_group_of_profiles_is_listed_with_its_intents(call):
    groups = {"env": ("auto", "kaggle", "wsl2"), "local/accumulate_grad_batches": ("high", "train", "val")}
    for group, names in groups.items():
        status, out, err = call("profiles", group)
        rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in out.splitlines()}
        assert (status, err) == (0, "") and {f"{group}={name}" for name in names} < set(rows)
        assert min(map(len, rows.values())) > 5
    assert call("profiles", "trainer") == call("profiles")


@pytest.mark.parametrize(
    "name, says",
    [
        ("env/kaggle", "dir: /kaggle/working/runs"),
        ("wsl2", "num_workers: 0"),
        ("high", "gradient_accumulation_steps: 4"),
        ("local/accumulate_grad_batches/high", "gradient_accumulation_steps: 4"),
    ],
)
def test_a_profile_of_another_group_is_shown_with_what_it_sets(call, name, says):
    status, out, err = call("profiles", name)
    assert (status, err) == (0, "") and says in out and out.startswith("# ") and "max_epochs" not in out


def test_the_list_of_profiles_says_auto_and_survives_a_wrong_variable(call, monkeypatch):
    monkeypatch.setenv("SPECTRAKIT_LIMIT_FILES", "abc")
    status, out, err = call("profiles")
    rows = {line.split()[0]: line.split() for line in out.splitlines()}
    assert (status, err) == (0, "") and rows["multi_gpu"][1] == rows["gpu"][1] == "auto" and rows["ddp"][1] == "16"
    assert "kaggle_safe" in rows and "smoke cannot be used: SPECTRAKIT_LIMIT_FILES=abc is not possible" in out


# a wrong request: exit status 2, one line, nothing lost


@pytest.mark.parametrize(
    "words, says",
    [
        (("trian",), ("'trian'", "'train'")),
        (("train",), ("No task", "spectrakit train coffee")),
        (("train", "coffe"), ("'coffe'", "'coffee'")),
        (("train", "nowhere.py:Name"), ("'nowhere.py'",)),
        (("train", "LINE", "LINE"), ("two tasks", "key=value")),
        (("train", "coffee", "fermentation"), ("coffee and fermentation", "two tasks")),
        (("train", "trainer=smoke", "cofee"), ("'cofee'", "'coffee'")),
        (("train", "LINE", "seed", "3"), ("'seed'", "seed=")),
        (("train", "LINE", "--cofnig", "x"), ("--cofnig", "--help")),
        (("train", "LINE", "--config"), ("--config",)),
        (("train", "LINE", "--config", "nowhere.yaml"), ("nowhere.yaml",)),
        (("train", "LINE", "trainer=kagle_safe"), ("kagle_safe", "'kaggle_safe'", "ci_fast")),
        (("train", "LINE", "trainre=kaggle"), ("'trainre'",)),
        (("train", "LINE", "optimizer=sgd"), ("optimizer", "optimizer.name")),
        (("train", "LINE", "trainer.max_epoch=3"), ("'trainer.max_epoch'", "'trainer.max_epochs'")),
        (("train", "LINE", "+unknown=1"), ("'unknown'", "extra.")),
        (("train", "LINE", "+trainer.patience=1"), ("'trainer.patience'",)),
        (("train", "LINE", "~seed"), ("~seed", "delete", "seed=0")),
        (("train", "LINE", "extra=5"), ("extra=5", "extra.note=5")),
        (("train", "LINE", "task.name=5"), ("task",)),
        (("train", "LINE", "seed=1,2"), ("seed=1,2", "one")),
        (("train", "LINE", "seed='1"), ("seed='1", "Quote")),
        (("train", "LINE", "=3"), ("no key", "key=value")),
        (("train", "LINE", "profile=kaggle"), ("trainer=kaggle",)),
        (("train", "LINE", "trainer.max_epochs=0"), ("trainer.max_epochs=0", "from 1 up")),
        (("train", "LINE", "trainer.max_epochs=-1"), ("trainer.max_epochs=-1", "from 1 up")),
        (("train", "LINE", "trainer.max_epochs=2.5"), ("trainer.max_epochs=2.5", "whole number")),
        (("train", "LINE", "trainer.max_epochs=many"), ("trainer.max_epochs=many", "whole number")),
        (("train", "LINE", "trainer.max_epochs=null"), ("trainer.max_epochs=null", "whole number")),
        (("train", "LINE", "trainer.deterministic=maybe"), ("trainer.deterministic=maybe", "true or false")),
        (("train", "LINE", "optimizer.lr=0"), ("optimizer.lr=0", "above 0")),
        (("train", "LINE", "optimizer.lr=inf"), ("optimizer.lr=inf",)),
        (("train", "LINE", "optimizer.lr=nan"), ("optimizer.lr=nan",)),
        (("train", "LINE", "optimizer.lr=[1]"), ("optimizer.lr=", "a number")),
        (("train", "LINE", "optimizer.name=adamx"), ("optimizer.name=adamx", "'adam")),
        (("train", "LINE", "scheduler.name=cosin"), ("scheduler.name=cosin", "'cosine'")),
        (("train", "LINE", "trainer.precision=17"), ("trainer.precision=17", "16, bf16, 32")),
        (("train", "LINE", "limits.train_frac=1.5"), ("limits.train_frac=1.5", "up to 1")),
        (("train", "LINE", "watchdog.limit=8"), ("watchdog.limit=8", "unit")),
        (
            ("train", "LINE", "data.batch_size=8", "data.micro_batch_size=16"),
            ("data.batch_size=8", "data.micro_batch_size=16", "Keep one"),
        ),
        (("train", "LINE", "scheduler.warmup_steps=3", "scheduler.warmup_epochs=1"), ("warmup_steps=3", "Keep one")),
        (("train", "LINE", "scheduler.warmup_steps=3", "warmup_ratio=0.1"), ("warmup_ratio=0.1 both", "Keep one")),
        (("train", "LINE", "task.widht=9"), ("'widht'", "'width'")),
        (("train", "LINE", "data.batch_size=64"), ("data.micro_batch_size=64", "40 samples")),
        (("train", "LINE", "run.dir=a_file"), ("a_file", "run.dir")),
        (("train", "LINE", "--predict", "nowhere/table.csv"), ("nowhere", "table.csv")),
        (("resume",), ("RUN,", "--help")),
        (("resume", "."), ("not a run", "spectrakit runs")),
        (("resume", "nowhere"), ("nowhere",)),
        (("resume", "a_file"), ("a_file",)),
        (("show", "."), ("not a run",)),
        (("plot", "."), ("not a run",)),
        (("predict", "."), ("not a run",)),
        (("predict",), ("RUN_DIR",)),
        (("predict", "LINE", ".", "more"), ("more",)),
        (("runs", "nowhere"), ("nowhere",)),
        (("runs", "a_file"), ("a_file",)),
        (("profiles", "kagle"), ("'kagle'", "'kaggle'")),
        (("profiles", "envv"), ("'envv'", "'env'")),
        (("profiles", "env/kagle"), ("'kagle'", "'kaggle'")),
        (("profiles", "KAGGLE_SAFE"), ("'kaggle_safe'",)),
        (("info", "--jsno"), ("--jsno",)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_wrong_request_is_one_line_and_loses_nothing(refused, here, words, says):
    (here / "a_file").write_text("precious")
    here_and_now = ("launch.mode=inline",) if words[0] == "train" and len(words) > 1 and words[-1] != "--config" else ()
    line = refused(*(task("Line") if word == "LINE" else word for word in words), *here_and_now)
    assert all(word in line for word in says), line


@pytest.mark.parametrize(
    "name, says", [("EmptyTraining", "no samples"), ("NanTraining", "not finite"), ("LossIsNone", "(sum, weight)")]
)
def test_a_fault_of_the_task_is_a_failed_run(here, capsys, name, says):
    assert main(["train", task(name), "launch.mode=inline", "run.dir=runs"]) == 1
    out = capsys.readouterr().out
    assert "failed: " in out and says in out


@pytest.mark.parametrize(
    "text, says",
    [
        ("data:\n\tmicro_batch_size: 8\n", ("mine.yaml, line 2", "tab")),
        ("seed: 1\nseed: 2\n", ("mine.yaml, line 2", "duplicate key")),
        ("colour: red\n", ("'colour'", "mine")),
        ("trainer:\n  max_epochs: 0\n", ("trainer.max_epochs=0",)),
        ("seed: [1\n", ("mine.yaml",)),
        ("- 1\n", ("mine",)),
        ("only words", ("mine",)),
    ],
)
@pytest.mark.parametrize("where", ["profile", "config"])
def test_a_broken_file_of_settings_is_one_line(refused, here, text, says, where):
    file = here / ("mine.yaml" if where == "config" else "profiles/trainer/mine.yaml")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("# @package _global_\n" * (where == "profile") + text)
    words = ("--config", "mine.yaml") if where == "config" else ("trainer=mine",)
    line = refused("train", task("Line"), *words)
    says = [word.replace("line 2", "line 3") if where == "profile" else word for word in says]
    assert all(word in line for word in [*says, "mine.yaml"]), line


@slow
@pytest.mark.parametrize(
    "text, says",
    [
        (b"# \xe9\nseed: 1\n", ("broken.yaml", "UTF-8")),
        (b"defaults: [kagle]\n", ("broken.yaml", "trainer/kagle", "'kaggle'")),
        (b"trainer:\n  max_epochs: many\n", ("broken.yaml", "trainer.max_epochs=many", "whole number")),
        (b"trainer:\n\tmax_epochs: 1\n", ("broken.yaml", "tab")),
        (b"defaults: [broken]\n", ("trainer=broken", "its own file")),
    ],
)
def test_a_broken_profile_is_one_line_in_the_list_and_hides_no_other(call, here, text, says):
    folder = here / "profiles" / "trainer"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("# my own\ndefaults: [kaggle]\ntrainer:\n  max_epochs: 7\n")
    (folder / "broken.yaml").write_bytes(text)
    status, out, err = call("profiles")
    rows = {line.split()[0]: line for line in out.splitlines()}
    assert (status, err) == (0, "") and {"ci_fast", "kaggle", "kaggle_safe", "mine"} <= set(rows)
    assert "my own" in rows["mine"]
    assert rows["broken"].startswith("broken cannot be used: ") and all(word in rows["broken"] for word in says), out


@slow
def test_a_wrong_time_limit_in_the_environment_is_one_line(tmp_path):
    done = run_cli(tmp_path, "info", env={"SPECTRAKIT_TIME_LIMIT": "540"})
    assert done.returncode == 2 and done.stdout == "" and "SPECTRAKIT_TIME_LIMIT" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@slow
def test_a_wrong_request_through_the_real_command(tmp_path):
    done = run_cli(tmp_path, "train", "coffe")
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


# what is accepted


def test_plus_sets_what_has_a_value_and_opens_extra_and_task(call, here):
    status, _out, err = call(
        "train", task("Line"), "+trainer.max_epochs=3", "+extra.note.deep=hello", "+task.width=5", "extra.n=1", *QUICK
    )
    assert (status, err) == (0, "")
    config = open_run(only_run(here)).config
    assert config.trainer.max_epochs == 3 and config.task["width"] == 5
    assert config.extra == {"note": {"deep": "hello"}, "n": 1}


@pytest.mark.parametrize(
    "text, words",
    [
        ("task: {name}\n", ("--config", "mine.yaml")),
        ("task:\n  name: {name}\n  width: 4\n", ("--config", "mine.yaml")),
        ("defaults:\n  - trainer: kaggle\n  - _self_\ntask: {name}\n", ("--config", "mine.yaml")),
        ("# @package _global_\ndefaults:\n  - ci_fast\ntask:\n  name: {name}\n", ("trainer=mine",)),
        (None, ("task.name={name}",)),
        (None, ("task={name}",)),
    ],
)
def test_the_task_may_stand_in_the_configuration(call, here, text, words):
    name = task("Line")
    if text is not None:
        for file in (here / "mine.yaml", here / "profiles" / "trainer" / "mine.yaml"):
            file.parent.mkdir(parents=True, exist_ok=True)
            if ("- ci_fast" in text) == (file.parent != here):
                file.write_text(text.replace("{name}", name))
    quoted = [word.replace("{name}", f"'{name}'") for word in words]
    status, _out, err = call("train", *quoted, *QUICK)
    assert (status, err) == (0, ""), err
    assert open_run(only_run(here)).config.task["name"] == name


def test_a_task_on_the_command_line_goes_before_the_one_in_the_file(call, here):
    (here / "mine.yaml").write_text("task: coffee\n")
    assert call("train", task("Line"), "--config", "mine.yaml", *QUICK)[0] == 0
    assert open_run(only_run(here)).config.task["name"] == task("Line")


def test_quiet_prints_only_where_and_how(call, here):
    status, out, err = call("train", "--quiet", task("Line"), *QUICK)
    assert (status, err) == (0, "") and len(out.splitlines()) == 2 and only_run(here).name in out and "completed" in out


def test_a_run_without_checkpoints_says_why_it_cannot_predict(call, here):
    assert call("train", task("Line"), *QUICK, "checkpoint.enabled=false")[0] == 0
    for words in (("predict", only_run(here)), ("predict", task("Line"), only_run(here))):
        status, _out, err = call(*words)
        assert status == 2 and "no valid checkpoint" in err and "checkpoint.enabled=true" in err
        assert err.count("\n") == 1


# a run: made, repeated, shown, drawn, used


def test_train_says_what_it_decided_and_leaves_a_whole_run(trained):
    where = str(trained.run.relative_to(trained.folder))
    for words in ("40 samples", "effective batch 8", "★ best", "completed", where):
        assert words in trained.stdout, words
    log = (trained.run / "logs" / "rank-0.log").read_text()
    assert trained.stderr == "" and re.fullmatch(r"completed: \d+ predictions from step-\d+\n", log)
    there = {path.name for path in trained.run.iterdir()}
    assert {
        "config.yaml",
        "environment.json",
        "events.jsonl",
        "checkpoints",
        "metrics.csv",
        "curves.png",
        "summary.json",
        "predictions.npz",
    } <= there
    assert "STOP" not in there
    kept = checkpoints(trained.run / "checkpoints")
    assert len(kept) >= 3 and [verify(path) for path in kept] == [[]] * len(kept)
    picture = (trained.run / "curves.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 10_000
    with open(trained.folder / "table.csv") as file:
        table = list(csv.DictReader(file))
    assert [row["id"] for row in table] == ["s0", "s1", "s2", "s3", "s4"] and all(float(row["y"]) for row in table)
    kinds = [event["type"] for event in read_events(trained.run / "events.jsonl") if event["type"] != "part"]
    assert kinds[0] == "start" and kinds[-1] == "end" and kinds.count("step") == 20 and kinds.count("eval") == 4


@slow
def test_the_snapshot_repeats_the_run_bit_for_bit(trained, tmp_path):
    done = run_cli(tmp_path, "train", "--config", trained.run / "config.yaml", "--quiet")
    assert done.returncode == 0, done.stderr
    again = only_run(tmp_path)
    assert (again / "config.yaml").read_bytes() == (trained.run / "config.yaml").read_bytes()
    logs = [open_run(run).events for run in (trained.run, again)]
    assert columns(logs[0], "step", "step", "loss", "lr") == columns(logs[1], "step", "step", "loss", "lr")
    assert columns(logs[0], "eval", "step", "metrics") == columns(logs[1], "eval", "step", "metrics")
    for name in ("model.safetensors", "ema.safetensors"):
        one, other = (find_checkpoint(run / "checkpoints")[0] / name for run in (trained.run, again))
        assert one.read_bytes() == other.read_bytes()


def test_resume_of_a_run_that_is_done_changes_nothing(call, trained):
    before = tree_hashes(trained.run)
    status, out, err = call("resume", trained.run)
    assert (status, err) == (0, "") and "nothing to resume" in out and tree_hashes(trained.run) == before


def test_show_tells_how_it_ended_and_what_is_kept(call, trained):
    status, out, err = call("show", trained.run)
    assert (status, err) == (0, "") and out.splitlines()[0] == str(open_run(trained.run))
    assert out.count("val_loss") >= 5 and "★ best" in out and "all 20 optimizer steps done" in out
    assert "effective batch 8" in out
    assert out.count("verified") == len(checkpoints(trained.run / "checkpoints")) >= 3


@slow
def test_watch_follows_a_run_from_another_terminal_until_it_ends(call, start_cli, here, trained):
    assert call("watch", trained.run)[1].rstrip().endswith("completed: all 20 optimizer steps done")
    process = start_cli(
        "train",
        task("Line"),
        "trainer.accelerator=cpu",
        "trainer.max_epochs=100000",
        "data.batch_size=8",
        "trainer.check_val_every_n_epoch=100000",
        "checkpoint.every_n_epochs=null",
    )
    run_dir = wait_for(lambda: next((p.parent for p in here.glob("runs/*/events.jsonl")), None), "a run")
    watching = start_cli("watch", run_dir)
    wait_for(lambda: last_event(read_events(run_dir / "events.jsonl"), "start"), "training")
    (run_dir / "STOP").touch()
    assert "interrupted: a stop was requested" in watching.communicate(timeout=240)[0] and watching.returncode == 0
    process.communicate(timeout=240)
    status, out, err = call("watch", here)
    assert (status, out, err.count("\n")) == (2, "", 1) and "is not a run" in err


def test_show_names_a_damaged_checkpoint(call, trained_copy):
    newest = find_checkpoint(trained_copy / "checkpoints")[0]
    (newest / "model.safetensors").write_bytes(b"")
    status, out, err = call("show", trained_copy)
    assert (status, err) == (0, "") and f"{newest.name}/model.safetensors has another size" in out


@pytest.mark.parametrize("points, kind", [(1, ""), (24, ""), (25, "smooth"), (80, "smooth"), (2000, "smooth")])
def test_the_curve_of_the_training_loss_is_not_late(points, kind):
    "A loss that falls to a hundredth: the line that stands for it stays within a seventh of it."
    steps = [{"t": i, "type": "step", "step": i, "epoch": i, "loss": 0.01 ** (i / points)} for i in range(points)]
    line = plot_curves(steps).panels[0].lines[-1]
    assert line.kind == kind and len(line.x) > 0
    most = 8 / 7 if points >= 25 else 1
    assert all(
        0.999 <= value / 0.01 ** (step / points) <= most * 1.001 for step, value in zip(line.x, line.y, strict=True)
    )


@slow
@pytest.mark.parametrize("ending, begins", [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_plot_draws_into_a_file(call, trained, here, ending, begins):
    status, out, err = call("plot", trained.run, "--out", f"picture.{ending}")
    assert (status, err) == (0, "") and out.strip() == f"picture.{ending}"
    assert (here / out.strip()).read_bytes().startswith(begins)


def test_show_keeps_the_best_evaluation_among_the_newest(call, trained_copy):
    log = trained_copy / "events.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    later = [
        json.dumps({"t": 99.0, "type": "eval", "step": 20, "epoch": 4.0 + i, "metrics": {"val_loss": 9.0}})
        for i in range(12)
    ]
    later.append('{"t": 99.5, "type": "restart", "step": 20, "epoch": 4}')
    log.write_text("".join(lines[:-1]) + "\n".join(later) + "\n" + lines[-1])
    status, out, err = call("show", trained_copy)
    assert (status, err) == (0, "") and out.count("★ best") == 1 and "11 of 16 evaluations" in out
    assert "continued from optimizer step 20" in out


FOREIGN = [
    '{"t": 1.0, "type": "eval"}',
    '{"type": "step", "step": 3, "epoch": 1}',
    '{"t": 1.0, "type": "end"}',
    '{"t": "soon", "type": "message", "text": "x"}',
    '{"t": 1.0, "type": "step", "epoch": 1}',
    '{"t": 1.0, "type": "step", "step": "3", "epoch": 1, "loss": 1}',
    '{"t": NaN, "type": "end"}',
    '{"t": 1.0, "type": "step", "step": 3, "epoch": 1, "loss": "low"}',
    '{"t": 1.0, "type": "restart"}',
    '{"t": 1.0, "type": "eval", "step": 3, "epoch": 1, "metrics": [1], "best": true}',
    '{"t": 1.0, "type": "start"}',
    '{"t": 1.0, "type": "eval", "step": 3, "epoch": 1, "metrics": {"val_loss": "low"}, "best": true}',
    '{"t": 1.0, "type": "start", "total_steps": "many"}',
    '{"t": 1e999, "type": "message"}',
    '{"t": 1.0, "type": "of somebody else", "step": "three"}',
    '{"t": 1.0, "type": "message"}',
    "[" * 99999,
]


@slow
def test_lines_of_somebody_else_in_the_log_break_no_command(call, trained, trained_copy):
    log = trained_copy / "events.jsonl"
    lines = log.read_text().splitlines()
    log.write_text("\n".join([FOREIGN[0], *lines[:4], *FOREIGN, *lines[4:], *FOREIGN]) + "\n")
    for command, where in (
        ("show", trained_copy),
        ("runs", trained_copy.parent),
        ("plot", trained_copy),
        ("resume", trained_copy),
    ):
        status, _out, err = call(command, where)
        assert (status, err) == (0, ""), (command, err)
    assert open_run(trained_copy).best == open_run(trained.run).best
    assert [row.split()[1:3] for row in call("runs", trained_copy.parent)[1].splitlines()[1:]] == [["completed", "20"]]


def test_a_cut_snapshot_of_a_run_is_refused_and_says_why(refused, trained_copy):
    file, log = trained_copy / "config.yaml", trained_copy / "events.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))  # it has not ended
    text = file.read_text()
    for cut in (text[: len(text) // 2], text.rpartition("optimizer:")[0], text[:-5], text[:40], ""):
        file.write_text(cut)
        for words in (("resume", trained_copy), ("predict", trained_copy), ("train", "--config", file)):
            line = refused(*words)
            assert "config.yaml" in line and "truncated" in line and "Copy it again" in line, line
    file.write_text(text.partition("\n")[2].replace("# end of the snapshot\n", ""))  # shortened on purpose
    assert open_run(trained_copy).config.trainer.max_epochs == 4


def test_plot_draws_into_the_run_and_refuses_what_it_cannot_write(call, refused, trained_copy, here):
    (trained_copy / "curves.png").unlink()
    assert call("plot", trained_copy)[0] == 0 and (trained_copy / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert ".png" in refused("plot", trained_copy, "--out", "picture.gif")
    assert "nowhere" in refused("plot", trained_copy, "--out", "nowhere/picture.png")


@slow
def test_runs_lists_the_newest_first_and_survives_a_broken_one(call, here, trained_copy):
    assert call("train", task("Line"), *QUICK, f"run.dir={trained_copy.parent}", "run.name=newer")[0] == 0
    broken = trained_copy.with_name("broken")
    broken.mkdir()
    for name in ("config.yaml", "events.jsonl"):
        (broken / name).write_bytes(b"\xff\x00: [")
    for name in ("config.yaml", "events.jsonl"):
        os.utime(broken / name, (0, 0))
    status, out, err = call("runs", trained_copy.parent)
    rows = [line.split() for line in out.splitlines()]
    assert (status, err) == (0, "")
    assert [row[0].partition("-")[0] for row in rows] == ["run", "newer", "submitting", "broken"]
    assert rows[2][1:3] == ["completed", "20"] and "val_loss=" in out and rows[3][1] == "unfinished"


def test_searches_and_cross_validations_stand_among_the_runs(call, refused, here):
    runs = here / "runs"
    one = plain_run(runs / "line-cv-1" / "fold-0" / "line-1")
    kept = {"fold-0/line-1": {"status": "completed", "value": 0.5, "seconds": 3.0}}
    cv = {"status": "out_of_time", "metric": "val_loss", "runs": kept, "total": 5}
    study = {"status": "completed", "metric": "val_f1", "best": 0.75, "best_trial": 2, "trials": 8, "total": 9}
    (runs / "line-cv-1" / "cv.json").write_text(json.dumps(cv))
    for name, text in (("line-search-1", json.dumps(study)), ("line-search-2", '{"status": [1], "best": tr')):
        (runs / name).mkdir()
        (runs / name / "study.json").write_text(text)
    os.utime(runs / "line-search-2" / "study.json", (0, 0))
    status, out, err = call("runs")
    rows = {line.split()[0]: " ".join(line.split()) for line in out.splitlines()[1:]}
    assert (status, err) == (0, "") and len(rows) == 3
    assert rows["line-search-1"].startswith("line-search-1 completed search 8 of 9 trials")
    assert rows["line-search-1"].endswith("val_f1=0.75 in trial 2") and " unfinished search " in rows["line-search-2"]
    assert " out_of_time cross-validation 1 of 5 folds 0:00:03 val_loss=0.5" in rows["line-cv-1"]
    for words in (("compare", "runs/line-cv-1", one), ("watch", "line-cv-1"), ("resume", "runs/line-cv-1")):
        line = refused(*words)
        assert "is a cross-validation, not a run" in line and "fold-0/line-1" in line, line
    assert call("show", "line-cv-1")[0] == 0  # by its name alone


@slow
def test_predict_with_and_without_the_task(trained, trained_copy, call, here):
    expected = (trained.folder / "table.csv").read_text()
    done = run_cli(here, "predict", task("Submitting"), trained_copy, "--out", "one.csv")
    assert done.returncode == 0 and "5 predictions" in done.stdout
    assert (done.stderr, (here / "one.csv").read_text()) == ("", expected)
    text = (trained_copy / "config.yaml").read_text()
    (trained_copy / "config.yaml").write_text(text.replace("launch:\n  mode: auto", "launch:\n  mode: inline"))
    status, out, err = call("predict", trained_copy, "--out", "other.csv")  # its settings are not those that it had
    assert status == 2 and "Nothing proves that" in err and "--trust" in err and not (here / "other.csv").exists()
    status, out, err = call("predict", trained_copy, "--out", "other.csv", "--trust")  # in this process
    assert (status, err, (here / "other.csv").read_text()) == (0, "", expected)
    status, out, err = call("predict", task("Line"), trained_copy)  # a task without a test set: its validation data
    assert (status, err) == (0, "") and "12 predictions" in out
    assert "nowhere" in call("predict", trained_copy, "--out", "nowhere/x.csv", "--trust")[2]


@slow
def test_a_failed_run_is_exit_status_1_with_its_reason_on_stderr(call, here):
    status, out, err = call(
        "train",
        "--quiet",
        task("NanTrainingListed"),
        "launch.mode=inline",
        "trainer.accelerator=cpu",
        "data.batch_size=4",
        "data.shuffle=false",
    )
    assert status == 1 and "failed" in out and "not finite" in err and "logs" in err and "Traceback" not in err


@slow
@pytest.mark.parametrize("word", ["run.console=auto", pytest.param("run.console=none", marks=pytest.mark.long)])
def test_who_reads_both_streams_reads_once_why_a_run_failed(here, word):
    words = ("train", task("NanTrainingListed"), "launch.mode=inline", "trainer.accelerator=cpu", "data.batch_size=4")
    command = [sys.executable, "-m", "spectrakit", *words, "data.shuffle=false", word]
    options = {"stdout": subprocess.PIPE, "text": True, "env": clean_environ(), "stdin": subprocess.DEVNULL}
    together = subprocess.run(command, cwd=here, stderr=subprocess.STDOUT, timeout=180, **options)
    assert together.returncode == 1 and together.stdout.count(open_run(only_run(here)).error) == 1


# a reader that leaves


@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    "words",
    [("--help",), ("train", "--help"), ("info",), ("profiles",), ("runs", "RUNS"), ("show", "RUN")],
    ids=" ".join,
)
@slow
def test_output_to_a_closed_pipe_is_no_error(tmp_path, trained, words, buffered):
    "Buffered, the text meets the closed pipe only when Python ends."
    reader, writer = os.pipe()
    os.close(reader)
    names = {"RUN": str(trained.run), "RUNS": str(trained.run.parent)}
    command = [sys.executable, "-m", "spectrakit", *(names.get(word, word) for word in words)]
    env = clean_environ() | ({} if buffered else {"PYTHONUNBUFFERED": "1"})
    try:
        done = subprocess.run(
            command,
            stdout=writer,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            env=env,
            cwd=tmp_path,
            text=True,
            timeout=120,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@slow
def test_a_training_whose_reader_leaves_is_not_lost_in_silence(tmp_path):
    "As in `spectrakit train … | head -1`: the run goes on to its end, or exit status and log say that it did not."
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "spectrakit", "train", task("Line"), *SETTINGS]
    process = subprocess.Popen(
        command,
        stdout=writer,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        cwd=tmp_path,
        env={**clean_environ(), "TINY_HOLD": f"21:{tmp_path}"},
        text=True,
    )
    os.close(writer)
    try:
        wait_for(lambda: (tmp_path / "held").exists() or process.poll() is not None, "the run to be held")
        os.close(reader)
        (tmp_path / "go").touch()
        _, err = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            process.kill()
    run = open_run(only_run(tmp_path))
    assert "Traceback" not in err
    if run.status == "completed":
        assert process.returncode == 0
    else:
        assert process.returncode != 0 and run.status in ("failed", "interrupted")


@slow
def test_a_service_without_standard_streams_trains(here, clean_env):
    "Descriptors 0 to 2 are closed, as by `<&- >&- 2>&-`: no file of the run takes their numbers, and no view fails."
    words = ["train", task("Line"), *QUICK[1:], "run.console=text"]
    closed = 'exec "$@" <&- >&- 2>&-'
    done = subprocess.run(
        ["sh", "-c", closed, "sh", sys.executable, "-m", "spectrakit", *words], cwd=here, env=clean_env, timeout=180
    )
    run = open_run(only_run(here))
    assert done.returncode == 0 and run.status == "completed", run.error
    assert (run.path / "curves.png").stat().st_size and not verify(find_checkpoint(run.path / "checkpoints")[0])


def test_a_view_without_standard_output_shows_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    view = TextView(plain_run(tmp_path / "run"))
    view.update()
    view.close()
