"Folds, trials and blends that were made elsewhere: none of them becomes part of a result without a word of consent."

import contextlib
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import spectrakit as sk
from helpers import tree_hashes
from spectrakit.config.compose import compose
from spectrakit.prediction.extra_columns import extra_columns
from spectrakit.runs.run_dir import is_foreign
from spectrakit.system.errors import RequestError
from spectrakit.tuning.trial import TrialLog, resumable_run
from tasks import Line

pytestmark = pytest.mark.slow
WORDS = (
    "trainer.accelerator=cpu",
    "data.batch_size=4",
    "trainer.max_epochs=1",
    "accumulate_grad_batches=1",
    "launch.mode=inline",
    "run.dir=runs",
)
SPACE = "optimizer.lr=choice(0.1,0.01)"
SEARCH = (*WORDS, "search.trials=2", "search.sampler=grid", SPACE)
THEIRS = 1000.0  # what a stranger's model predicts


class Numbered(Line):
    "Each input is its own number, and so is each prediction, with `added`: who has predicted can be seen."

    added = 0.0
    metrics = None

    def datasets(self, cfg):
        rows = torch.arange(11.0)
        return TensorDataset(rows[:, None].repeat(1, 3), rows), None

    def test_dataset(self, cfg):
        return TensorDataset(torch.zeros(4, 3))

    def model(self, cfg):
        return nn.Sequential(nn.Linear(3 + extra_columns(cfg), 1), nn.Flatten(0))

    def predict(self, model, batch):
        return batch[0][:, 0] + self.added


def added(value: float) -> Numbered:
    made = Numbered()
    made.added = value
    return made


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    "A context in which another user, with a key of his own, works."

    @contextlib.contextmanager
    def other():
        with monkeypatch.context() as patch:
            patch.setenv("SPECTRAKIT_STATE", str(tmp_path / "of-a-stranger"))
            yield

    monkeypatch.setenv("SPECTRAKIT_STATE", str(tmp_path / "mine"))
    return other


def folds(task, *words, **more) -> sk.CrossValidation:
    return sk.cross_validate(task, compose(*WORDS, *words), folds=2, show=False, **more)


def test_a_stranger_s_folds_are_left_alone_refused_by_name_and_taken_with_consent(here, stranger, capsys):
    with stranger():
        theirs = folds(added(THEIRS))
    before = tree_hashes(theirs.path)
    assert resumable_run(theirs.path / "fold-0") is None and resumable_run(theirs.path / "fold-0", trust=True)
    mine = folds(Numbered(), resume="auto")
    told = capsys.readouterr().err
    assert f"{theirs.path.name} is not used: Nothing proves" in told and "trust=True" in told
    assert mine.path != theirs.path and mine.values.max() < THEIRS and np.max(mine.test["predictions"]) < THEIRS
    assert tree_hashes(theirs.path) == before and not is_foreign(mine.path)
    with pytest.raises(RequestError, match=f"Nothing proves that .*{theirs.path.name}.*--trust"):
        folds(Numbered(), resume=theirs.path)
    shutil.rmtree(mine.path)
    taken = folds(Numbered(), resume="auto", trust=True)
    assert taken.path == theirs.path and taken.values.min() >= THEIRS and taken.trusted


def test_a_stranger_s_fold_in_a_group_made_here_is_trained_again(here, stranger, capsys):
    with stranger():
        theirs = folds(added(THEIRS), "run.dir=theirs")
    mine = folds(Numbered())
    shutil.rmtree(mine.path / "fold-1")
    shutil.copytree(theirs.path / "fold-1", mine.path / "fold-1")
    with pytest.raises(RequestError, match="Nothing proves that .*fold-1"):
        folds(Numbered(), resume=mine.path)
    again = folds(Numbered(), resume="auto")
    told = capsys.readouterr().err
    assert "fold-1/" in told and "has no proof that it was made here by you, so it is trained again" in told
    assert again.path == mine.path and again.values.max() < THEIRS and again.runs[0].path == mine.runs[0].path
    assert sk.open_cross_validation(mine.path).runs[1].path == again.runs[1].path  # not the stranger's beside it
    assert folds(Numbered(), resume=mine.path).values.max() < THEIRS  # an own one stands there now


@pytest.mark.parametrize("attached", [True, False])
def test_what_is_attached_is_a_stranger_s_as_a_single_run_is(here, stranger, monkeypatch, attached):
    theirs = folds(added(THEIRS))
    (here / "input").mkdir()
    moved = Path(shutil.move(theirs.path, here / "input" / theirs.path.name))
    if attached:
        monkeypatch.setenv("SPECTRAKIT_INPUT", str(here / "input"))
        with pytest.raises(RequestError, match="Nothing proves"):
            folds(Numbered(), resume=moved)
    taken = folds(Numbered(), resume=moved, trust=attached)
    assert taken.values.min() >= THEIRS and taken.path.parent == Path("runs")


def test_a_single_trial_begins_anew_beside_a_stranger_s_run(here, stranger):
    config = compose(*WORDS, "run.dir=trial", "folds.count=2")
    with stranger():
        theirs = sk.run_single_trial(config, fold=0, task=added(THEIRS))
    assert TrialLog(Path("trial")).poll() == [] and TrialLog(Path("trial"), trust=True).poll()
    mine = sk.run_single_trial(config, fold=0, task=Numbered())
    assert mine.run.path != theirs.run.path and np.load(mine.out_of_fold)["predictions"].max() < THEIRS
    taken = sk.run_single_trial(config, fold=0, task=Numbered(), trust=True)
    assert taken.run.path in (mine.run.path, theirs.run.path)


def test_a_stranger_s_search_is_left_alone_refused_by_name_and_taken_with_consent(here, stranger, capsys):
    with stranger():
        theirs = sk.search(Line(), *SEARCH, show=False)
        assert theirs.best_config.optimizer.lr in (0.1, 0.01)
    mine = sk.search(Line(), *SEARCH, resume="auto", show=False)
    told = capsys.readouterr().err
    assert f"{theirs.path.name} is not used: Nothing proves" in told and mine.path != theirs.path
    with pytest.raises(RequestError, match="Nothing proves that .*--trust"):
        sk.search(Line(), *SEARCH, resume=theirs.path, show=False)
    with pytest.raises(RequestError, match="Nothing proves"):
        print(sk.open_study(theirs.path).best_config)
    assert sk.open_study(theirs.path, trust=True).best_config and sk.open_study(mine.path).best_config
    shutil.rmtree(mine.path)
    taken = sk.search(Line(), *SEARCH, resume="auto", show=False, trust=True)
    assert taken.path == theirs.path and [row.value for row in taken.trials] == [row.value for row in theirs.trials]


def test_the_best_trial_predicts_and_gives_its_settings_only_where_its_run_was_made_here(here, stranger, capsys):
    study = sk.search(Numbered(), *SEARCH, "search.folds=2", show=False)
    with stranger():
        other = sk.search(added(THEIRS), *SEARCH, "search.folds=2", "run.dir=theirs", show=False)
    best = study.path / study.best.folder
    shutil.rmtree(best / "fold-0")
    shutil.copytree(other.path / other.best.folder / "fold-0", best / "fold-0")
    with pytest.raises(RequestError, match="Nothing proves that .*fold-0"):
        print(sk.open_study(study.path).best_config)
    with pytest.raises(RequestError, match="Nothing proves that .*fold-0"):
        sk.search(Numbered(), *SEARCH, "search.folds=2", resume=study.path, predict="made.csv", show=False)
    again = sk.search(Numbered(), *SEARCH, "search.folds=2", resume="auto", predict="made.csv", show=False)
    told = capsys.readouterr().err
    assert f"{study.path.name} is not used: Nothing proves" in told and again.path != study.path
    assert Path("made.csv").is_file() and not is_foreign(again.run.path)


def test_a_blend_and_a_prediction_together_ask_for_each_member(here, stranger):
    mine = folds(Numbered())
    with stranger():
        theirs = folds(added(THEIRS), "run.dir=theirs", "seed=0")
    for given in ((mine.path, theirs.path), (mine, sk.open_cross_validation(theirs.path))):
        with pytest.raises(RequestError, match=f"Nothing proves that .*{theirs.path.name}"):
            sk.blend(*given)
    together = sk.blend(mine.path, theirs.path, trust=True).names
    assert [name.removesuffix(" (2)") for name in together] == [mine.path.name, theirs.path.name]
    assert sk.blend(mine, sk.open_cross_validation(theirs.path, trust=True)).names
    shutil.rmtree(mine.path / "fold-0")  # a stranger's fold in the place of one's own, which the facts name
    shutil.copytree(theirs.path / "fold-0" / theirs.runs[0].path.name, mine.runs[0].path)
    with pytest.raises(RequestError, match="Nothing proves that .*fold-0"):
        sk.blend(mine.path, theirs.path)
    for group in (mine.path, theirs.path, sk.open_cross_validation(theirs.path)):
        with pytest.raises(RequestError, match="Nothing proves"):
            sk.predict(Numbered(), runs=[group])
    assert len(sk.predict(Numbered(), runs=[mine.path], trust=True).values) == 4


# arrays in folders that were made here


def swap(theirs: sk.CrossValidation, mine: sk.CrossValidation, *names: str) -> None:
    "Put a stranger's arrays in the place of one's own; the marks of runs and groups stay."
    for name in names:
        source = theirs.path if name.count("/") == 0 else theirs.runs[int(name[5])].path
        target = mine.path if name.count("/") == 0 else mine.runs[int(name[5])].path
        shutil.copy(source / Path(name).name, target / Path(name).name)


@pytest.fixture
def both(here, stranger):
    "Two cross-validations with the same folds, one's own and a stranger's."
    with stranger():
        theirs = folds(added(THEIRS), "run.dir=theirs", "folds.predict_train=true")
    return folds(Numbered(), "folds.predict_train=true"), theirs


@pytest.mark.parametrize("name", ["out_of_fold.npz", "predictions.npz", "train.npz"])
def test_a_stranger_s_arrays_in_an_own_run_are_predicted_anew(both, name):
    mine, theirs = both
    swap(theirs, mine, f"fold-0/{name}")
    assert not is_foreign(mine.runs[0].path)
    again = folds(Numbered(), "folds.predict_train=true", resume=mine.path)
    assert again.runs[0].path == mine.runs[0].path and again.values.max() < THEIRS
    assert np.max(again.test["predictions"]) < THEIRS
    assert np.load(mine.runs[0].path / name)["predictions"].max() < THEIRS
    swap(theirs, mine, f"fold-0/{name}")
    folds(Numbered(), "folds.predict_train=true", resume=mine.path, trust=True)
    assert np.load(mine.runs[0].path / name)["predictions"].max() >= THEIRS


@pytest.mark.parametrize("name", ["out_of_fold.npz", "predictions.npz"])
def test_a_stranger_s_arrays_in_an_own_group_are_blended_with_consent_alone(both, name):
    mine, theirs = both
    swap(theirs, mine, name)
    with pytest.raises(RequestError, match=f"Nothing proves that .*{name}.*--trust"):
        sk.blend(mine.path, sk.open_cross_validation(mine.path))
    assert sk.blend(mine.path, mine.path, trust=True).names
    again = folds(Numbered(), "folds.predict_train=true", resume=mine.path)
    assert again.values.max() < THEIRS and sk.blend(again, again).names


def test_a_stranger_s_division_in_an_own_group_is_not_gone_on_with(both):
    mine, theirs = both
    swap(theirs, mine, "folds.npz")
    with pytest.raises(RequestError, match=r"Nothing proves that .*folds\.npz"):
        folds(Numbered(), "folds.predict_train=true", resume=mine.path)


@pytest.mark.parametrize("key", ["pseudo", "distill", "columns"])
@pytest.mark.parametrize("swapped", ["", "fold-1/predictions.npz", "out_of_fold.npz"])
def test_what_a_run_learns_from_was_made_here_or_is_agreed_to(both, key, swapped):
    mine, theirs = both
    source = theirs.path
    if swapped:
        swap(theirs, mine, swapped)
        source = mine.path
    words = (f"folds.{key}={source}", "folds.count=2")
    with pytest.raises(RequestError, match="Nothing proves that .*--trust"):
        folds(Numbered(), *words, "run.dir=after")
    for call in (sk.fit, sk.search):
        with pytest.raises(RequestError, match="Nothing proves that .*--trust"):
            call(
                Numbered(),
                *(SEARCH if call is sk.search else WORDS),
                *words,
                "folds.fold=0",
                "run.dir=after",
                show=False,
            )
    assert not list(Path("after").glob("*/**/checkpoints"))
    assert folds(Numbered(), *words, "run.dir=after", trust=True).status == "completed"


def test_a_run_with_columns_of_a_group_made_here_goes_on_and_predicts(both):
    mine, theirs = both
    words = (f"folds.columns={mine.path}", "folds.count=2", "folds.fold=0")
    run = sk.fit(Numbered(), *WORDS, *words, show=False)
    assert len(sk.predict(Numbered(), run).values) == 4
    swap(theirs, mine, "predictions.npz")
    with pytest.raises(RequestError, match=r"Nothing proves that .*predictions\.npz"):
        sk.predict(Numbered(), run)
    assert len(sk.predict(Numbered(), run, trust=True).values) == 4
