"""Trackers: a run's numbers, read back by each tracker's own reader, are those of its event log; and they never cost
the run.
"""

import io
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers import TESTS, clean_environ, only_run, run_cli, task
from spectrakit.checkpoint.mirror import mirror_files
from spectrakit.checkpoint.store import find_checkpoint, load_weights
from spectrakit.config.compose import compose
from spectrakit.config.effective_batch import by_symbol
from spectrakit.distributed.context import create_run_context
from spectrakit.runs.events import EventLog, effective_events, read_events
from spectrakit.runs.trackers.mlflow import MLflow, mlflow_uri
from spectrakit.runs.trackers.registry import TRACKERS, start_trackers
from spectrakit.runs.trackers.tracker import Tracker, Trackers, hyperparameters
from spectrakit.runs.trackers.wandb import wandb_mode
from spectrakit.system.errors import RequestError
from spectrakit.system.platforms.detect import detect
from spectrakit.train.loop import train_run
from spectrakit.train.state import Execution
from spectrakit.view.terminal import RichView, TextView, TqdmView, make_text_view
from spectrakit.watchdog.time_budget import Budget, TimeLimit
from tasks import Line

pytestmark = pytest.mark.slow  # half a minute of W&B and MLflow

SETTINGS = (
    "local/accumulate_grad_batches=debug",  # a step for each batch: steps are counted here
    "trainer.accelerator=cpu",
    "launch.mode=inline",
    "trainer.max_epochs=3",
    "data.batch_size=8",
    "trainer.log_every_n_steps=1",
    "trainer.log_min_seconds=0",
    "checkpoint.every_n_steps=4",
    "checkpoint.every_n_epochs=null",
)


@pytest.fixture(autouse=True)
def no_tracker_of_this_machine(monkeypatch):
    "Neither a key nor a server of whoever runs the tests."
    for name in list(os.environ):
        if name.startswith(("WANDB_", "MLFLOW_")):
            monkeypatch.delenv(name)


class Dicing(Line):
    "Draws from Python's own generator, which trackers use too; says each draw as a metric with an odd name."

    def loss(self, model, batch):
        return super().loss(model, batch) * (1 + 0.01 * random.random())

    def metrics(self, outputs, batch):
        return {"mae": ((outputs - batch[1]).abs().sum(), len(outputs)), "F1 (macro)": (1.0, 2.0)}


def train(folder, *overrides, task=None, resume=False, stop=lambda: False):
    "A run in this process: (status, its events, its config)."
    cfg = compose(*SETTINGS, *overrides)
    folder.mkdir(exist_ok=True)
    context = create_run_context(cfg, detect(environ={}))
    execution = Execution(context, folder, Budget(TimeLimit(None, 0.0, "none")), stop)
    status, _ = train_run(task or Dicing(), cfg, execution, resume)
    return status, read_events(folder / "events.jsonl"), cfg


def logged(events, but=()) -> dict[str, dict[int, float]]:
    "What the event log says: name → {step: value}."
    found = {}
    for event in effective_events(events):
        values = {
            "step": lambda e: {k: e[k] for k in ("loss", "lr", "epoch", "samples_per_s")},
            "eval": lambda e: e["metrics"],
        }.get(event["type"])
        for name, value in (values(event) if values else {}).items():
            if name not in but:
                found.setdefault(name, {})[event["step"]] = value
    return found


def messages(events) -> list[str]:
    return [e["text"] for e in events if e["type"] == "message"]


# --- each tracker's own reader ----------------------------------------------------------------------------------------


def from_tensorboard(run_dir) -> dict[str, dict[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

    reader = EventAccumulator(str(run_dir / "trackers" / "tensorboard"), size_guidance={SCALARS: 0}).Reload()
    points = {name: [(p.step, p.value) for p in reader.Scalars(name)] for name in reader.Tags()["scalars"]}
    assert all(len(dict(found)) == len(found) for found in points.values()), "a step stands there twice"
    return {name: dict(found) for name, found in points.items()}


def wandb_records(file: Path) -> list:
    """The records of an offline run, decoded by W&B's own message classes.

    The file is a LevelDB log behind 7 bytes of W&B's: blocks of 32 KiB, each piece with checksum, length and kind."""
    from wandb.proto import wandb_internal_pb2

    data, at, piece, records = file.read_bytes(), 7, b"", []
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        piece, at = piece + data[at + 7 : at + 7 + size], at + 7 + size
        if kind in (1, 4):  # whole, or the last part
            records.append(wandb_internal_pb2.Record.FromString(piece))
            piece = b""
    return records


def from_wandb(run_dir) -> dict[str, dict[int, float]]:
    found: dict = {}
    for file in sorted((run_dir / "trackers" / "wandb").glob("offline-run-*/*.wandb")):
        for record in wandb_records(file):
            if record.WhichOneof("record_type") != "history":
                continue
            items = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
            for name, value in items.items():
                if not name.startswith("_"):
                    found.setdefault(name, {})[items["_step"]] = value
    return found


def mlflow_run(run_dir):
    "MLflow's client on the run's own store, and the run there."
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{run_dir / 'trackers' / 'mlflow' / 'mlflow.db'}")
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
    assert len(runs) == 1
    return client, runs[0]


def from_mlflow(run_dir) -> dict[str, dict[int, float]]:
    client, run = mlflow_run(run_dir)
    return {
        name: {m.step: m.value for m in client.get_metric_history(run.info.run_id, name)} for name in run.data.metrics
    }


# --- what is written --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def all_three(tmp_path_factory):
    "A run with every tracker: its folder, events, config."
    kept = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(("WANDB_", "MLFLOW_"))}
    folder = tmp_path_factory.mktemp("all") / "run"
    random.seed(5)
    status, events, cfg = train(folder, "report_to=all", "tracking.project=lab", "distributed.env.TORCH_MINE=hush")
    assert status == "completed"
    os.environ.update(kept)
    return folder, events, cfg


def test_tensorboard_has_the_numbers_of_the_event_log(all_three):
    folder, events, _ = all_three
    found, told = from_tensorboard(folder), logged(events)
    assert set(found) == set(told) and len(told["loss"]) == 15 and told["val_mae"]
    for name in told:
        assert found[name] == pytest.approx(told[name], rel=1e-6), name  # TensorBoard keeps 32 bits


def test_wandb_has_the_numbers_of_the_event_log(all_three):
    folder, events, _ = all_three
    assert from_wandb(folder) == logged(events)


def test_mlflow_has_the_numbers_of_the_event_log(all_three):
    folder, events, _ = all_three
    told = logged(events)
    told["val_F1 _macro_"] = told.pop("val_F1 (macro)")
    assert from_mlflow(folder) == told


def test_every_tracker_knows_the_settings_and_the_sizes_of_a_batch(all_three):
    import yaml

    folder, events, cfg = all_three
    sizes = by_symbol(next(event for event in events if event["type"] == "start"))
    assert list(sizes) == ["B", "K", "W", "B_eff", "lr_eff"]
    told = hyperparameters(cfg) | sizes
    client, run = mlflow_run(folder)
    assert run.data.params == {name: str(value) for name, value in told.items()}
    assert run.info.status == "FINISHED" and run.info.run_name == "run"
    assert client.get_experiment(run.info.experiment_id).name == "lab"
    (file,) = (folder / "trackers" / "tensorboard").glob("*/hparams.yml")
    assert yaml.safe_load(file.read_text()) == told
    (file,) = (folder / "trackers" / "wandb").glob("offline-run-*/*.wandb")
    records = wandb_records(file)
    assert {
        u.key: json.loads(u.value_json)
        for r in records
        if r.WhichOneof("record_type") == "config"
        for u in r.config.update
    } == told
    (started,) = [r.run for r in records if r.WhichOneof("record_type") == "run"]
    assert (started.project, started.display_name, started.run_id) == (
        "lab",
        "run",
        (folder / "trackers/wandb/run_id").read_text().strip(),
    )


def test_no_secret_is_told(all_three, tmp_path):
    folder, _, _ = all_three
    for file in (folder / "trackers").rglob("*"):
        if file.is_file():
            assert b"hush" not in file.read_bytes(), file
    assert not [
        p
        for p in (folder / "trackers").rglob("*")
        if p.name in ("wandb-metadata.json", "requirements.txt", "output.log")
    ]


def test_trackers_stay_in_their_folder_and_say_where_they_write(all_three):
    folder, events, _ = all_three
    assert sorted(p.name for p in folder.iterdir()) == ["checkpoints", "environment.json", "events.jsonl", "trackers"]
    assert {p.name for p in (folder / "trackers").iterdir()} == {"tensorboard", "wandb", "mlflow"}
    assert (
        len(
            [
                t
                for t in messages(events)
                if "offline: there is no WANDB_API_KEY" in t or "trackers/mlflow/mlflow.db" in t
            ]
        )
        == 2
    )
    assert not [t for t in messages(events) if "no longer" in t or "not written" in t]
    assert events[-1]["type"] == "end"


def test_trackers_change_nothing_in_the_run(all_three, tmp_path):
    folder, events, _ = all_three
    random.seed(5)
    _, plain, _ = train(tmp_path / "plain")
    without = ("samples_per_s",)
    assert logged(events, without) == logged(plain, without)
    one, two = (load_weights(find_checkpoint(f / "checkpoints")[0]) for f in (folder, tmp_path / "plain"))
    assert all((one[name] == two[name]).all() for name in one)
    assert not (tmp_path / "plain" / "trackers").exists()


def test_this_process_is_as_it_was_before(all_three):
    import mlflow

    assert (
        mlflow.active_run() is None
        and "MLFLOW_TRACKING_URI" not in os.environ
        and "all" not in mlflow.get_tracking_uri()
    )


# --- going on ---------------------------------------------------------------------------------------------------------


def test_a_run_that_goes_on_is_the_same_run_in_every_tracker(tmp_path):
    folder, calls = tmp_path / "run", []

    class Stumbles(Line):
        def loss(self, model, batch):
            calls.append(model.training)
            if sum(calls) > 10:
                raise OSError("the data's disk went away")
            return super().loss(model, batch)

    status, events, _ = train(folder, "report_to=all", "checkpoint.keep_last=9", task=Stumbles())
    assert status == "failed" and mlflow_run(folder)[1].info.status == "FAILED"
    # only an older checkpoint is left: what was logged after it is done, and logged, anew
    for path in (folder / "checkpoints").glob("step-*"):
        if path.name != "step-00000004":
            shutil.rmtree(path)
    (folder / "checkpoints" / "LATEST").write_text("step-00000004\n")
    ids = {name: (folder / "trackers" / name / "run_id").read_text() for name in ("wandb", "mlflow")}
    status, events, _ = train(folder, "report_to=all", task=Line(), resume=True)
    assert status == "completed" and [e["step"] for e in events if e["type"] == "restart"] == [4]
    assert ids == {name: (folder / "trackers" / name / "run_id").read_text() for name in ids}
    assert mlflow_run(folder)[1].info.status == "FINISHED"  # one run, see mlflow_run
    told = logged(events)
    assert sorted(told["loss"]) == list(range(1, 16))
    assert from_mlflow(folder) == told
    assert from_wandb(folder) == told
    found = from_tensorboard(folder)
    for name in told:
        assert found[name] == pytest.approx(told[name], rel=1e-6)
    files = list((folder / "trackers" / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2 and len({f.name for f in files}) == 1


# --- what can go wrong ------------------------------------------------------------------------------------------------


def test_a_copy_without_the_store_in_its_folder_begins_a_new_run_there(tmp_path, monkeypatch):
    "A mirror has the names by which trackers know a run, and not what they keep in its folder."
    kept = tmp_path / "run" / "trackers" / "trackio" / "run_id"
    opened, stores = [], {"old"}

    class Own(Tracker):
        def open(self, context):
            opened.append(context.run_id)
            if context.run_id not in (None, *stores):
                raise LookupError("no such run")
            context.keep_run_id(context.run_id or "new")
            self.inner = SimpleNamespace(store_init_configuration=print, log=print, finish=lambda: None)

    monkeypatch.setitem(TRACKERS, "trackio", Own)
    config = compose()
    config = replace(config, tracking=replace(config.tracking, names=["trackio"]))
    kept.parent.mkdir(parents=True)
    for known, text in (("old", "old"), ("gone", "new")):
        kept.write_text(known + "\n")
        said = []
        assert list(start_trackers(config, tmp_path / "run", said.append, step=4).opened) == ["trackio"] and said == []
        assert kept.read_text() == text + "\n"
    assert opened == ["old", "gone", None]
    mirror_files(tmp_path / "run", tmp_path / "drive")
    assert (tmp_path / "drive" / "run" / "trackers" / "trackio" / "run_id").read_text() == "new\n"


def test_a_tracker_that_fails_costs_a_message(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "trackers").write_text("a file where the folder should be")
    status, events, _ = train(tmp_path / "run", "report_to=[tensorboard,mlflow]")
    assert status == "completed" and len(logged(events)["loss"]) == 15
    assert len(messages(events)) == 2 and all("is not written: " in text for text in messages(events))


def test_a_tracker_that_fails_on_the_way_is_dropped_with_one_message(tmp_path, monkeypatch):
    from accelerate.tracking import TensorBoardTracker

    real, seen = TensorBoardTracker.log, []

    def full(self, values, step=None, **kwargs):
        seen.append(step)
        if step >= 5:
            raise OSError(28, "No space left on device")
        real(self, values, step=step, **kwargs)

    monkeypatch.setattr(TensorBoardTracker, "log", full)
    status, events, _ = train(tmp_path / "run", "report_to=[tensorboard,mlflow]")
    assert status == "completed" and max(seen) == 5
    assert [t for t in messages(events) if "tensorboard is no longer written: OSError: [Errno 28]" in t] and len(
        messages(events)
    ) == 2
    assert max(from_tensorboard(tmp_path / "run")["loss"]) == 4 and max(from_mlflow(tmp_path / "run")["loss"]) == 15


def test_the_message_about_a_failure_holds_no_secret(monkeypatch):
    class Dead(Tracker):
        def log(self, values, step):
            raise ConnectionError("https://me:geheim@lab/api does not answer to the key 0123456789")

        def finish(self, failed=False):
            raise OSError("nor does it end")

    monkeypatch.setenv("LAB_API_KEY", "0123456789")
    said = []
    trackers = Trackers({"mlflow": Dead()}, said.append)
    for step in (1, 2):
        trackers.log(step, {"loss": 1.0})
    trackers.close()
    assert said == [
        "mlflow is no longer written: ConnectionError: https://me:<password>@lab/api does not answer to the "
        "key <LAB_API_KEY>; the run's own log continues"
    ]


def test_metrics_whose_names_mlflow_does_not_take_stay_apart():
    logged = []
    tracker = MLflow()
    tracker.inner = SimpleNamespace(log=lambda values, step: logged.append(values))
    tracker.log({"val_f1_北": 0.1, "val_f1_南": 0.2, "n" * 300: 1.0, "n" * 299: 2.0}, step=1)
    tracker.log({"val_f1_南": 0.3}, step=2)
    assert sorted(logged[0].values()) == [0.1, 0.2, 1.0, 2.0] and max(map(len, logged[0])) == 250
    (again,) = logged[1]
    assert logged[0][again] == 0.2


def test_a_mlflow_run_of_ones_own_stays_open(tmp_path):
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mine.db'}")
    try:
        with mlflow.start_run() as mine:
            status, events, _ = train(tmp_path / "run", "report_to=mlflow")
            assert (
                status == "completed"
                and "mlflow is not written: RuntimeError: a run of yours is open" in messages(events)[0]
            )
            assert mlflow.active_run().info.run_id == mine.info.run_id
            mlflow.log_metric("mine", 1.0)
    finally:
        mlflow.set_tracking_uri(None)


BLOCKED = """
import os, sys
class Without:
    "A finder that does not see some installed packages; folders of their names in this place it sees."
    def __init__(self, finder): self.finder = finder
    def __getattr__(self, name): return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {blocked!r}: path = [os.getcwd()]
        return self.finder.find_spec(name, path, target)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""


def in_a_fresh_process(code: str, cwd: Path, blocked: tuple[str, ...]) -> str:
    "What `code` prints where `blocked` packages cannot be imported."
    environ = {k: v for k, v in clean_environ().items() if not k.startswith(("WANDB_", "MLFLOW_"))}
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED.format(blocked=blocked) + code],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_missing_package_is_told_before_training_and_leaves_no_run(tmp_path):
    for name in ("wandb", "tensorboard", "mlflow"):
        (tmp_path / name).mkdir()  # a folder of that name is no package
    told = in_a_fresh_process(
        f"""
sys.path[:0] = {[str(Path(__file__).parent), str(TESTS)]!r}
from pathlib import Path
from spectrakit.config.compose import compose
from spectrakit.system.errors import RequestError
from spectrakit.api.actions import fit
from tasks import Line
for word in ("report_to=wandb", "report_to=tensorboard", "trainer.logger=mlflow", "run.console=rich"):
    try: fit(Line(), compose("launch.mode=inline", "trainer.accelerator=cpu", "run.dir=runs", word))
    except RequestError as error: print(error)
    assert not any(Path("runs").glob("*"))
cfg = compose("launch.mode=inline", "trainer.accelerator=cpu", "run.dir=runs", "report_to=csv")
print(fit(Line(), cfg, show=False).status)
print(Path(next(Path("runs").glob("*/metrics.csv"))).name)
""",
        tmp_path,
        ("wandb", "tensorboard", "mlflow", "rich"),
    ).splitlines()
    assert [re.search(r'Run: pip install "spectrakit-train\[(\w+)\]"', line)[1] for line in told[:4]] == [
        "wandb",
        "tensorboard",
        "mlflow",
        "console",
    ]
    assert told[4:] == ["completed", "metrics.csv"]


def test_a_missing_bar_is_told(tmp_path):
    told = in_a_fresh_process(
        """
from pathlib import Path
from spectrakit.system.errors import RequestError
from spectrakit.view.terminal import make_text_view
for console in ("rich", "tqdm"):
    try: make_text_view(console, Path())
    except RequestError as error: print(error)
""",
        tmp_path,
        ("rich", "tqdm"),
    )
    assert [line.split()[0] for line in told.splitlines()] == ["run.console=rich", "run.console=tqdm"]
    assert told.count("spectrakit-train[console]") == 2


def test_only_rank_zero_has_trackers(tmp_path):
    assert start_trackers(compose("report_to=all"), tmp_path, print, is_main=False).opened == {}
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_said_to_a_network(tmp_path):
    "No address is looked up and none is called from Python: files are all that offline trackers need."
    told = in_a_fresh_process(
        f"""
import socket
real = socket.socket.connect
def connect(self, address):
    if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "localhost", "::1"):
        print("REACHED FOR", address, flush=True)
        raise OSError("no network")
    return real(self, address)
socket.socket.connect = connect
def lookup(host, *rest, **more):
    if host in (None, "127.0.0.1", "localhost", "::1"): return look(host, *rest, **more)
    print("LOOKED UP", host, flush=True)
    raise OSError("no network")
look, socket.getaddrinfo = socket.getaddrinfo, lookup
sys.path[:0] = {[str(Path(__file__).parent), str(TESTS)]!r}
from pathlib import Path
from test_trackers import train
status, events, cfg = train(Path("run"), "report_to=all")
print(status, [e["text"] for e in events if e["type"] == "message" and "written" in e["text"]])
""",
        tmp_path,
        (),
    )
    assert told.strip().splitlines()[-1] == "completed []" and "REACHED" not in told and "LOOKED UP" not in told


# --- where the numbers go ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "environ, platform, words, mode",
    [
        ({}, "local", (), "offline"),
        ({"WANDB_API_KEY": "k"}, "local", (), "online"),
        ({"WANDB_API_KEY": "k"}, "kaggle", (), "offline"),
        ({"WANDB_API_KEY": "k"}, "colab", (), "offline"),
        ({"WANDB_API_KEY": "k", "WANDB_MODE": "offline"}, "local", (), "offline"),
        ({"WANDB_API_KEY": "k", "WANDB_MODE": "online"}, "kaggle", (), "online"),
        ({"WANDB_API_KEY": "k"}, "kaggle", ("tracking.mode=online",), "online"),
        ({"WANDB_API_KEY": "k"}, "local", ("tracking.mode=offline",), "offline"),
    ],
)
def test_wandb_is_offline_unless_it_can_be_online(environ, platform, words, mode):
    found, reason = wandb_mode(compose(*words), environ, platform)
    assert found == mode and reason and "k" not in reason.split()


def test_mlflow_goes_to_the_server_that_was_set_up(tmp_path):
    server = {"MLFLOW_TRACKING_URI": "http://lab:5000"}
    assert mlflow_uri(compose(), server, tmp_path)[0] == "http://lab:5000"
    assert mlflow_uri(compose("tracking.mode=offline"), server, tmp_path)[0].startswith("sqlite:///")
    assert mlflow_uri(compose("tracking.mode=online"), {}, tmp_path)[0].startswith("sqlite:///")


@pytest.mark.parametrize(
    "word, names",
    [
        ("tracking.names=wandb", ["wandb"]),
        ("trainer.logger=tensorboard", ["tensorboard"]),
        ("trainer.loggers=[csv,mlflow]", ["csv", "mlflow"]),
        ("training.log_with=wandb", ["wandb"]),
        ("report_to=all", ["csv", "tensorboard", "wandb", "mlflow"]),
        ("log_with=none", ["csv"]),
        ("trainer.logger=false", ["csv"]),
        ("trainer.logger=lightning.pytorch.loggers.MLFlowLogger", ["mlflow"]),
        ("report_to='wandb, mlflow'", ["wandb", "mlflow"]),
    ],
)
def test_a_tracker_is_found_under_every_spelling(word, names):
    assert compose(word).tracking.names == names


def test_a_wrong_tracker_gives_the_right_one():
    with pytest.raises(RequestError, match=r"there is no tracker 'wanbd'.*Did you mean 'wandb'\? More: `spectrakit"):
        compose("report_to=wanbd")
    with pytest.raises(RequestError, match=r"tracking.names.*console|Did you mean 'tqdm'"):
        compose("run.console=tqmd")


# --- the console ------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


def written(tmp_path, steps: int) -> EventLog:
    log = EventLog(tmp_path / "events.jsonl")
    log.write(
        "start",
        task="line",
        train_samples=40,
        parameters=33,
        total_steps=steps,
        steps_per_epoch=5,
        effective_batch_size=8,
        micro_batch_size=8,
        gradient_accumulation_steps=1,
        world_size=1,
    )
    return log


@pytest.mark.parametrize("console, kind", [("tqdm", TqdmView), ("rich", RichView)])
def test_a_bar_is_drawn_four_times_a_second_at_most(tmp_path, monkeypatch, console, kind):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    now, out, log, before = [0.0], Terminal(), written(tmp_path, 1000), set(threading.enumerate())
    view = make_text_view(console, tmp_path, out=out, clock=lambda: now[0])
    assert type(view) is kind
    for step in range(1, 1001):  # a hundred steps a second, ten seconds
        log.write("step", step=step, epoch=step / 5, loss=1 / step, lr=1e-3, samples_per_s=800.0)
        now[0] += 0.01
        view.update()
    assert 30 <= out.getvalue().count("samples/s") <= 42
    log.write("eval", step=1000, epoch=200, metrics={"val_loss": 0.25}, best=True)
    log.write("end", status="completed", reason="all done")
    view.update()
    view.close()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue()).replace("\r", "\n")
    assert "1000/1000" in text and "val_loss 0.25" in text and text.rstrip().endswith("completed: all done")
    assert out.getvalue().count("\x1b[?25l") == out.getvalue().count("\x1b[?25h"), "the cursor was not given back"
    assert not [
        t for t in set(threading.enumerate()) - before if "tqdm" in type(t).__module__ or "rich" in type(t).__module__
    ], "a thread draws"


@pytest.mark.parametrize("console", ["tqdm", "rich"])
def test_a_bar_writes_lines_where_nothing_can_be_drawn_over(tmp_path, console):
    log, one, two = written(tmp_path, 3), io.StringIO(), io.StringIO()
    for step in (1, 2, 3):
        log.write("step", step=step, epoch=step / 5, loss=1 / step, lr=1e-3, samples_per_s=800.0)
    log.write("message", text="a [note] :with: signs")
    for view in (make_text_view(console, tmp_path, out=one, every_s=0), TextView(tmp_path, two, every_s=0)):
        view.update()
        view.close()
    assert one.getvalue() == two.getvalue() and "3/3" in one.getvalue() and "\r" not in one.getvalue()


@pytest.mark.parametrize("console, kind", [("auto", TextView), ("text", TextView), ("none", type(None))])
def test_text_is_the_default(tmp_path, console, kind):
    assert type(make_text_view(console, tmp_path)) is kind


def test_the_choice_reaches_the_command_line(tmp_path):
    words = ("train", task("Line"), "trainer.max_epochs=1", "trainer.accelerator=cpu")
    done = run_cli(tmp_path, *words, "run.console=rich", "report_to=tensorboard")
    assert done.returncode == 0 and "completed" in done.stdout, done.stderr
    assert from_tensorboard(only_run(tmp_path))["loss"]
    done = run_cli(tmp_path, *words, "report_to=tensorbord")
    assert done.returncode == 2 and "Did you mean 'tensorboard'?" in done.stderr
