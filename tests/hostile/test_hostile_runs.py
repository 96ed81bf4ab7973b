"""Runs that a stranger made: settings that name code, read the environment or explode, links that lead out, sizes."""

import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile_harness import Case, Place, check
from torch.utils.data import TensorDataset

import odd_runs
from spectrakit.api.actions import fit, predict, resume
from spectrakit.api.run import list_runs, open_run
from spectrakit.checkpoint.store import CheckpointContent, save_checkpoint
from spectrakit.cli.main import main
from spectrakit.config.compose import compose, snapshot
from spectrakit.launch.consent import trust
from spectrakit.pages.comparison import compare
from spectrakit.pages.run_report import report
from spectrakit.runs.history import read_history
from spectrakit.runs.run_dir import is_foreign
from spectrakit.system.errors import RequestError
from spectrakit.task.task import Task

NAME = "spectra-20261120-101500"


def their_run(place: Place, config: str, cut: bool = True) -> Path:
    "A run as it arrives: settings, a log, facts, a checkpoint."
    run = odd_runs.plain_run(place.folder / "theirs" / NAME)
    (run / "config.yaml").write_text(config)
    if cut:
        lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
        (run / "events.jsonl").write_text("".join(lines[:-1]))
    (run / "environment.json").write_text(json.dumps({"run_id": "4f1c", "origin": "0" * 64, "decided": {}}))
    save_checkpoint(run / "checkpoints", 20, CheckpointContent({"w": torch.zeros(2)}, {"step": 20}, [{}]))
    return run


def bomb(levels: int = 30) -> str:
    names = [f"a{i}" for i in range(levels)]
    lines = ["extra:", f"  {names[0]}: &{names[0]} [1, 2, 3, 4, 5, 6, 7, 8, 9]"]
    return "\n".join(lines + [f"  {b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in itertools.pairwise(names)])


def names_task(text: str) -> Callable[[Place], str]:
    "Settings whose task is `text`, with the code that it names beside it."

    def made(place: Place) -> str:
        place.code("evil.py")
        place.code("evilpackage/__init__.py")
        return snapshot(compose("task.name=coffee")).replace("name: coffee", f"name: {text.format(place.folder)}", 1)

    return made


# What the settings of a run may hold: the text, and what is said of it where something would be executed.
CONFIGS: dict[str, tuple[Callable[[Place], str], str]] = {
    "task is a file": (names_task("{}/evil.py:Evil"), "Nothing proves that"),
    "task is a relative file": (names_task("evil.py:Evil"), "Nothing proves that"),
    "task is a module": (names_task("evil:Evil"), "Nothing proves that"),
    "task is a module of a package": (names_task("evilpackage.deep:Evil"), "Nothing proves that"),
    "task is a module of Python": (names_task("os:abort"), "Nothing proves that"),
    "python path": (lambda p: "task: {name: coffee}\ndistributed: {env: {PYTHONPATH: /x}}\n", "PYTHONPATH"),
    "preload": (lambda p: "task: {name: coffee}\ndistributed: {env: {LD_PRELOAD: /tmp/evil.so}}\n", "LD_PRELOAD"),
    "python start": (lambda p: "task: {name: coffee}\ndistributed: {env: {PYTHONSTARTUP: /x.py}}\n", "PYTHONSTARTUP"),
    "a library of nccl": (
        lambda p: "task: {name: coffee}\ndistributed: {env: {NCCL_NET_PLUGIN: /x}}\n",
        "NCCL_NET_PLUGIN",
    ),
    "a library of cuda": (lambda p: "distributed: {env: {CUDA_INJECTION64_PATH: /x}}\n", "CUDA_INJECTION64_PATH"),
    "a tool of openmp": (lambda p: "distributed: {env: {OMP_TOOL_LIBRARIES: /x}}\n", "OMP_TOOL_LIBRARIES"),
    "proxies": (lambda p: "distributed: {env: {HTTPS_PROXY: 'http://x'}}\n", "HTTPS_PROXY"),
    "environment in the name": (lambda p: "run: {name: '${oc.env:KAGGLE_KEY}'}\ntask: {name: coffee}\n", "oc.env"),
    "environment in extra": (lambda p: "extra: {a: [{b: 'x ${oc.env:KAGGLE_KEY} y'}]}\n", "oc.env"),
    "environment in a key": (lambda p: "extra: {'${oc.env:KAGGLE_KEY}': 1}\n", "oc.env"),
    "environment in the task": (lambda p: "task: {name: coffee, fold: '${oc.env:KAGGLE_KEY}'}\n", "oc.env"),
    "decoded environment": (lambda p: "extra: {a: '${oc.decode:${oc.env:KAGGLE_KEY}}'}\n", "oc.decode"),
    "selected environment": (lambda p: "extra: {a: '${oc.select:x,${oc.env:KAGGLE_KEY}}'}\n", "oc.select"),
    "a resolver put together": (lambda p: "extra: {b: oc.env, a: '${${extra.b}:KAGGLE_KEY}'}\n", "extra.b"),
    "an alias to the environment": (lambda p: "extra: {b: &x '${oc.env:KAGGLE_KEY}', a: *x}\n", "oc.env"),
    "defaults that climb": (lambda p: "defaults:\n- trainer: ../../outside/secret\n", "outside|defaults"),
    "defaults of a whole path": (lambda p: f"defaults:\n- {p.outside}/secret\n", "outside|defaults"),
    "defaults of a group above": (lambda p: "defaults:\n- ../outside: secret\n", "outside|defaults"),
    "defaults by a scheme": (lambda p: f"defaults:\n- file://{p.outside}/secret\n", "outside|defaults"),
    "a search path": (
        lambda p: f"hydra: {{searchpath: ['file://{p.outside}']}}\ndefaults:\n- secret\n",
        "secret|defaults",
    ),
    "aliases that explode": (lambda p: bomb(), "aliases"),
    "an alias of itself": (lambda p: "extra: &a {b: *a}\n", "alias"),
    "merged aliases that explode": (lambda p: bomb().replace("extra:", "extra:\n  <<: {}"), "alias"),
    "nested deeply": (lambda p: "extra: " + "[" * 20_000, "nested|YAML"),
    "nested deeply, by lines": (lambda p: "".join(f"{' ' * n}a:\n" for n in range(2000)), "nested|YAML|settings|a"),
    "too large": (lambda p: "extra: {a: '" + "x" * 2**21 + "'}\n", "too large"),
    "a python object": (lambda p: "task: !!python/object/apply:os.system ['touch EXECUTED']\n", "YAML"),
    "a python name": (lambda p: "task: !!python/name:os.system\n", "YAML"),
    "a huge number": (lambda p: "seed: " + "9" * 5000 + "\n", "YAML|seed"),
    "a day that is none": (lambda p: "extra: {a: 2026-99-99}\n", ""),
    "not a mapping": (lambda p: "- 1\n", "settings"),
    "signs of control": (lambda p: 'run: {name: "\\e[2J\\e]0;x\\a"}\ntask: {name: coffee}\n', ""),
    "a name that climbs": (lambda p: "run: {name: ../../outside/x}\ntask: {name: coffee}\n", ""),
}
REFUSING = ("predict", "resume", "load_model", "trust it", "train --config", "check --config", "find-lr --config")


def shell(*words: Any) -> Callable[[Path], Any]:
    return lambda run: main([str(word(run)) if callable(word) else str(word) for word in words])


ACTS: dict[str, Callable[[Path], Any]] = {
    "predict": lambda run: predict(None, run),
    "resume": lambda run: resume(run, show=False),
    "load_model": lambda run: open_run(run).load_model(),
    "trust it": lambda run: trust(run),
    "train --config": shell("train", "--config", lambda run: run / "config.yaml"),
    "check --config": shell("check", "--config", lambda run: run / "config.yaml"),
    "find-lr --config": shell("find-lr", "--config", lambda run: run / "config.yaml"),
    "look": lambda run: [str(list_runs(run.parent)), open_run(run).metrics, read_history(run).settings],
    "report": lambda run: report(run),
    "compare": lambda run: compare(run, run).save(run.parent.parent / "compared.html"),
    "runs": shell("runs", lambda run: run.parent),
    "show": shell("show", lambda run: run),
    "plot": shell("plot", lambda run: run),
    "trust": shell("trust", lambda run: run),
    "predict in a shell": shell("predict", lambda run: run),
    "resume in a shell": shell("resume", lambda run: run),
}
RUNS_CODE = {name for name, (_, says) in CONFIGS.items() if says.startswith("Nothing")}
# A task that is built in may be trained and used without a word.
HARMLESS = {"signs of control", "a name that climbs"}


def settings_cases() -> list[Any]:
    cases = []
    for turn, (what, (text, says)) in enumerate(CONFIGS.items()):
        for number, (how, act) in enumerate(ACTS.items()):
            expected = (
                says
                if what not in HARMLESS and how in REFUSING and not (how == "trust it" and what in RUNS_CODE)
                else None
            )
            case = Case(f"{what}: {how}", lambda place, text=text: their_run(place, text(place)), act, expected)
            quick = number == turn % len(ACTS)
            cases.append(pytest.param(case, id=case.name, marks=() if quick else pytest.mark.long))
    return cases


@pytest.mark.slow
@pytest.mark.parametrize("case", settings_cases())
def test_settings_of_a_stranger(case, hostile):
    check(case, hostile)


# --- consent ----------------------------------------------------------------------------------------------------------


def test_consent_is_given_to_just_what_was_shown(hostile):
    place = Place(hostile)
    run = their_run(place, names_task("{}/evil.py:Evil")(place))
    shown = trust(run)
    assert list(shown.files) == [str(hostile / "evil.py")] and shown.task == f"{hostile}/evil.py:Evil"
    assert not shown.made_here and not shown.accepted and not place.mark.exists()
    assert trust(run, accept_it=True).accepted and trust(run).accepted
    with pytest.raises(RequestError, match="Evil"):  # imported now, and no task
        resume(run, show=False)
    assert place.mark.exists()
    place.mark.unlink()
    place.code("evil.py").write_text("print('another one')")
    assert not trust(run).accepted
    with pytest.raises(RequestError, match="Nothing proves that"):
        resume(run, show=False)


class Line(Task):
    "Learns y = 2x in an instant."

    def datasets(self, cfg):
        x = torch.linspace(-1, 1, 16)[:, None]
        return TensorDataset(x, 2 * x), TensorDataset(x, 2 * x)

    def model(self, cfg):
        return torch.nn.Linear(1, 1)

    def loss(self, model, batch):
        return ((model(batch[0]) - batch[1]) ** 2).mean()


INLINE = (
    "launch.mode=inline",
    "data.batch_size=4",
    "trainer.accelerator=cpu",
    "trainer.max_epochs=1",
    "watchdog.limit=none",
)


@pytest.mark.slow
def test_a_run_made_here_is_known_and_a_finished_one_of_others_is_no_result(hostile, capsys, monkeypatch):
    run = fit(Line(), compose(*INLINE), show=False)
    assert not is_foreign(run.path) and trust(run).made_here
    assert fit(Line(), compose(*INLINE), resume="auto", show=False).path == run.path
    shutil.copytree(run.path, hostile / "copy" / run.path.name)
    assert not is_foreign(hostile / "copy" / run.path.name)  # by the one who made it
    theirs = Path(shutil.move(run.path, hostile / "input" / run.path.name))
    monkeypatch.setenv("SPECTRAKIT_INPUT", str(hostile / "input"))
    assert is_foreign(theirs)
    mine = fit(Line(), compose(*INLINE), resume="auto")
    told = capsys.readouterr().out
    assert mine.path.parent.name == "runs" and f"input/{theirs.name}" in told and "not made here" in told
    shutil.rmtree(mine.path)
    assert fit(Line(), compose(*INLINE), resume="auto", show=False, trust=True).path.resolve() == theirs
    assert resume(theirs, Line(), show=False).path == theirs  # it was named
    with monkeypatch.context() as other:  # somebody else, or another machine
        other.setenv("XDG_STATE_HOME", str(hostile / "other"))
        assert is_foreign(hostile / "copy" / run.path.name)


@pytest.mark.slow
def test_settings_of_others_write_nowhere_else(hostile, capsys):
    mirror = hostile / "outside" / "mirror"
    run = fit(Line(), compose(*INLINE), show=False)
    text = (run.path / "config.yaml").read_text()
    text = text.replace("mirror: null", f"mirror: {mirror}").replace("env: {}", "env: {NCCL_DEBUG: INFO}")
    (run.path / "config.yaml").write_text(text)
    again = resume(run.path, Line(), "trainer.max_epochs=2", "resume.allow=[trainer.max_epochs]", show=False)
    assert again.status == "completed" and not mirror.exists() and again.config.checkpoint.mirror is None
    told = capsys.readouterr().err
    assert "checkpoint.mirror" in told and "NCCL_DEBUG" in told and not is_foreign(again.path)


# --- links ------------------------------------------------------------------------------------------------------------

LINKS = {
    "config.yaml": "secret.yaml",
    "events.jsonl": "secret.txt",
    "environment.json": "secret.txt",
    "summary.json": "secret.txt",
    "metrics.csv": "secret.txt",
    "curves.png": "secret.txt",
    "report.html": "secret.txt",
    "dashboard.html": "secret.txt",
    "predictions.npz": "secret.txt",
    "logs": "",
    "logs/rank-0.log": "secret.txt",
    "trackers": "",
    "checkpoints": "",
    "checkpoints/LATEST": "secret.txt",
    "checkpoints/BEST": "secret.txt",
    "checkpoints/AVERAGE": "secret.txt",
    "checkpoints/step-00000020": "",
    "checkpoints/step-00000020/manifest.json": "secret.txt",
    "checkpoints/step-00000020/model.safetensors": "secret.txt",
    "lock": "secret.txt",
    "deep/er": "",
}
ENDLESS = ("config.yaml", "events.jsonl", "environment.json", "summary.json", "predictions.npz", "checkpoints/BEST")


def linked(name: str, target: str) -> Callable[[Place], Path]:
    "A run in which `name` leads to `target`: a pipe on which nobody writes, a device, or a file outside."

    def made(place: Place) -> Path:
        run = their_run(place, snapshot(compose("task.name=coffee")))
        path = run / name
        shutil.rmtree(path, ignore_errors=True)
        path.unlink(missing_ok=True)
        path.parent.mkdir(exist_ok=True)
        if target == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to(target if target.startswith("/dev") else place.outside / target)
        return run

    return made


def link_cases() -> list[Any]:
    found = [(name, target) for name, target in LINKS.items()]
    found += [(name, target) for name in ENDLESS for target in ("pipe", "/dev/zero")]
    cases = []
    for turn, (name, target) in enumerate(found):
        for number, how in enumerate(
            ("resume", "look", "report", "compare", "runs", "show", "plot", "resume in a shell")
        ):
            case = Case(f"{name} to {target or 'a folder'}: {how}", linked(name, target), ACTS[how])
            quick = number == turn % 8 and not turn % 2
            cases.append(pytest.param(case, id=case.name, marks=() if quick else pytest.mark.long))
    return cases


@pytest.mark.slow
@pytest.mark.parametrize("case", link_cases())
def test_links_and_endless_files_of_a_stranger(case, hostile):
    check(case, hostile)


# --- sizes ------------------------------------------------------------------------------------------------------------


def sized(name: str, write: Callable[[Path], Any]) -> Callable[[Place], Path]:
    def made(place: Place) -> Path:
        run = their_run(place, snapshot(compose("task.name=coffee")))
        (run / name).parent.mkdir(exist_ok=True)
        write(run / name)
        return run

    return made


def npz_bomb(file: Path) -> None:
    "An archive of 1 MiB whose one array says that it has 8 TB."
    import zipfile

    head = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }"
    head += b" " * (118 - len(head)) + b"\n"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "predictions.npy", b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bytes(2**20)
        )


def sparse(size: int) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        with open(file, "wb") as opened:
            opened.truncate(size)

    return write


def long_reason(file: Path) -> None:
    with open(file, "a") as log:
        log.write(json.dumps(odd_runs.end(20, "failed", "x" * 2**22)) + "\n")


SIZES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "arrays that are not there": ("predictions.npz", npz_bomb),
    "a line without an end": ("events.jsonl", sparse(2**26)),
    "a reason of four million letters": ("events.jsonl", long_reason),
    "facts of a quarter of a gigabyte": ("environment.json", sparse(2**28 + 1)),
    "a summary of a quarter of a gigabyte": ("summary.json", sparse(2**28 + 1)),
    "settings of a quarter of a gigabyte": ("config.yaml", sparse(2**28 + 1)),
    "a manifest of a quarter of a gigabyte": ("checkpoints/step-00000020/manifest.json", sparse(2**28 + 1)),
    "a pointer of a quarter of a gigabyte": ("checkpoints/BEST", sparse(2**28 + 1)),
    "averages of a quarter of a gigabyte": ("checkpoints/AVERAGE", sparse(2**28 + 1)),
    "facts nested deeply": ("environment.json", lambda file: file.write_text("[" * 10**6)),
}


def size_cases() -> list[Any]:
    cases = []
    for name, (file, write) in SIZES.items():
        for number, how in enumerate(("look", "report", "compare", "runs", "show", "plot", "resume")):
            case = Case(f"{name}: {how}", sized(file, write), ACTS[how])
            quick = number == name.startswith(("arrays", "a reason"))
            cases.append(pytest.param(case, id=case.name, marks=() if quick else pytest.mark.long))
    return cases


@pytest.mark.slow
@pytest.mark.parametrize("case", size_cases())
def test_sizes_of_a_stranger(case, hostile):
    check(case, hostile)
