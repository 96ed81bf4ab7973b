"A device or a pipe as the file of predictions is written to, and never replaced; a folder or a socket is refused."

import os
import socket
import stat
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import spectrakit as sk
from spectrakit.checkpoint.mirror import mirror_files, mirror_folder
from spectrakit.cli.main import main
from spectrakit.pages.run_report import report
from spectrakit.runs.events import EventLog, EventReader, log_file
from spectrakit.system.errors import RequestError
from spectrakit.system.files import write_atomic

X = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
TABLE_ROWS = 1 + 5


class Sums(sk.Task):
    def datasets(self, cfg):
        data = TensorDataset(X, X.sum(1, keepdim=True))
        return data, data

    def test_dataset(self, cfg):
        return TensorDataset(X[:5])

    def model(self, cfg):
        return nn.Linear(3, 1)

    def loss(self, model, batch):
        return F.mse_loss(model(batch[0]), batch[1])


@pytest.fixture
def config(tmp_path):
    where = ("trainer.accelerator=cpu", "launch.mode=inline", f"run.dir={tmp_path}", "dataloader.num_workers=0")
    return sk.compose(*where, "data.batch_size=6", "trainer.max_epochs=1", "run.console=none")


@pytest.fixture
def pipe(tmp_path):
    "A named pipe with a reader; yields its path and a function that returns its content."
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    yield path, lambda: os.read(reader, 2**16).decode()
    os.close(reader)


def fitted(config, out):
    return sk.fit(Sums(), config, predict=out, show=False)


def predicted(config, out):
    return sk.predict(Sums(), sk.fit(Sums(), config, show=False), out=out)


def of_folds(config, out):
    return sk.cross_validate(Sums(), config, folds=2, predict=out, show=False)


@pytest.mark.parametrize("act", [fitted, predicted, of_folds])
def test_a_pipe_gets_the_table_once(config, pipe, act):
    path, content = pipe
    act(config, path)
    lines = content().splitlines()
    assert lines[0] == "index,prediction" and len(lines) == TABLE_ROWS
    assert stat.S_ISFIFO(os.stat(path).st_mode)


@pytest.mark.parametrize("act", [fitted, predicted, of_folds])
def test_a_device_stays_a_device(config, tmp_path, act):
    link = tmp_path / "null"
    link.symlink_to(os.devnull)
    for out in (os.devnull, link):
        act(config, out)
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode) and link.is_symlink()


def test_predictions_name_the_device(config):
    assert str(predicted(config, os.devnull).table) == os.devnull


def test_standard_output_gets_the_table(config, capfd):
    predicted(config, "/dev/stdout")
    assert "index,prediction" in capfd.readouterr().out


@pytest.mark.parametrize("act", [fitted, predicted, of_folds])
def test_a_socket_and_a_folder_are_refused(config, tmp_path, monkeypatch, act):
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    with socket.socket(socket.AF_UNIX) as endpoint:
        endpoint.bind("endpoint")
        for name, kind in (("endpoint", "is a socket"), (str(tmp_path), "is a folder")):
            with pytest.raises(RequestError, match=kind):
                act(config, name)
        assert stat.S_ISSOCK(os.stat("endpoint").st_mode)


@pytest.mark.parametrize("act", [fitted, predicted, of_folds])
def test_the_record_names_what_has_got_the_table(config, pipe, act):
    for out in (os.devnull, pipe[0]):
        state = act(config, out).submission
        assert state.is_whole and state.file == str(out) and state.rows == TABLE_ROWS - 1


@pytest.mark.parametrize("act", [fitted, predicted, of_folds])
def test_a_full_device_has_no_submission(config, capfd, act):
    done = act(config, "/dev/full")
    assert done.submission is None and getattr(done, "table", None) is None
    assert "'/dev/full' cannot be written" in capfd.readouterr().err


@pytest.mark.parametrize(("out", "status"), [(os.devnull, 0), ("/dev/full", 1)])
def test_the_exit_status_says_whether_the_table_was_written(config, tmp_path, monkeypatch, out, status):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sums.py").write_text(Path(__file__).read_text())
    words = ["trainer.accelerator=cpu", "launch.mode=inline", "trainer.max_epochs=1", "data.batch_size=6", "run.dir=."]
    assert main(["train", "sums.py:Sums", *words, "run.name=a", "--predict", out]) == status
    assert main(["predict", "sums.py:Sums", str(next(Path().glob("a-*"))), "--out", out]) == status
    assert main(["cross-validate", "sums.py:Sums", *words, "folds.count=2", "--predict", out]) == status


def test_other_files_are_written_through_as_well(tmp_path, pipe):
    path, content = pipe
    write_atomic(path, "a page")
    assert content() == "a page"
    with pytest.raises(OSError, match="Is a directory"):
        write_atomic(tmp_path, "a page")


def test_a_pipe_in_place_of_a_log_is_not_read(tmp_path):
    os.mkfifo(log_file(tmp_path))
    with pytest.raises(OSError, match="not a regular file"):
        EventReader(log_file(tmp_path)).poll()
    with pytest.raises(OSError, match="not a regular file"):
        EventLog(log_file(tmp_path))


ACTS = {
    "resume": lambda run: sk.resume(
        run, Sums(), "trainer.max_epochs=3", "resume.allow=[trainer.max_epochs]", show=False
    ),
    "predict": lambda run: sk.predict(Sums(), run),
}
ODD = {"a pipe": os.mkfifo, "a link that leads out": lambda path: path.symlink_to(os.devnull)}


@pytest.fixture
def never_waits(monkeypatch):
    def opened(path):
        raise AssertionError(f"{path} was opened for writing")

    monkeypatch.setattr("spectrakit.system.files._open_stream", opened)


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
@pytest.mark.parametrize("name", ["predictions.npz", "events.jsonl", "summary.json", "lock", "checkpoints/LATEST"])
@pytest.mark.parametrize("what", ODD)
def test_a_pipe_among_the_files_of_a_run_is_refused_before_the_first_step(config, never_waits, act, name, what):
    run = sk.fit(Sums(), config, show=False)
    path = run.path / name
    path.unlink(missing_ok=True)
    ODD[what](path)
    before = sorted(run.path.rglob("*"))
    with pytest.raises(RequestError, match=f"{name} in .* is {what}|has no {name}|{name} in it is"):
        act(run.path)
    assert sorted(run.path.rglob("*")) == before


@pytest.mark.parametrize("name", ["study.html", "fold-1/notes"])
def test_a_pipe_in_the_folder_of_folds_is_refused(config, never_waits, name):
    done = sk.cross_validate(Sums(), config, folds=2, show=False)
    (done.path / name).parent.mkdir(exist_ok=True)
    os.mkfifo(done.path / name)
    with pytest.raises(RequestError, match=f"{name} in .* is a pipe"):
        sk.cross_validate(Sums(), config, folds=2, resume=done.path, show=False)


def test_what_is_made_of_a_run_waits_for_no_reader_of_a_pipe(config, never_waits, tmp_path):
    run = sk.fit(Sums(), config, show=False)
    os.mkfifo(run.path / "report.html")
    with pytest.raises(RequestError, match="report.html' cannot be written: it is a pipe"):
        report(run)
    os.mkfifo(tmp_path / "output-manifest.json")
    assert "was not written: it is a pipe" in sk.seal_output(tmp_path, show=False).notes[0]
    target = mirror_folder(tmp_path / "mirror", run.path)
    target.mkdir(parents=True)
    os.mkfifo(target / "events.jsonl")
    with pytest.raises(OSError, match="it is a pipe"):
        mirror_files(run.path, tmp_path / "mirror")
