"Several runs, one submission: what one of them lacks, or the time, costs the others nothing."

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from spectrakit.checkpoint.store import CheckpointContent, save_checkpoint
from spectrakit.config.compose import compose
from spectrakit.distributed.context import create_run_context
from spectrakit.jobs import ensemble
from spectrakit.jobs.ensemble import predict_runs
from spectrakit.jobs.prediction import Member, Target
from spectrakit.prediction.ensemble import Mixture
from spectrakit.system.errors import RequestError
from spectrakit.system.platforms.detect import detect

ROWS = {"own": ("a", "b", "c"), "others": ("x", "y"), "scaled": ("a", "b", "c")}


class Named:
    "A model of one weight; its table has the names of the rows that were read last, as a table's ids are."

    options = {"data": "own"}

    def datasets(self, cfg):
        return TensorDataset(torch.ones(4, 1), torch.ones(4)), None

    def model(self, cfg):
        return nn.Linear(1, 1, bias=False)

    def loss(self, model, batch):
        return model(batch[0]).mean()

    def test_dataset(self, cfg):
        self.names = ROWS.get(cfg.task["data"], ())
        if not self.names:
            raise RequestError("There are no rows.")
        return (torch.full((len(self.names), 1), 2.0 if cfg.task["data"] == "scaled" else 1.0),)

    def submission(self, predictions):
        return {"id": list(self.names), "y": predictions[:, 0]}


class Runs:
    "Runs whose models say 1, 2 and 6."

    def __init__(self, folder):
        self.folder = folder
        self.context = create_run_context(self.config("own"), detect(environ={}))
        for weight in (1.0, 2.0, 6.0):
            content = CheckpointContent({"weight": torch.tensor([[weight]])}, {}, [{}])
            save_checkpoint(folder / f"run-{weight:g}" / "checkpoints", 1, content)

    @staticmethod
    def config(data):
        return compose("data.micro_batch_size=2", "trainer.accelerator=cpu", f"task.data={data}")

    def predicted(self, *members, how="mean", task=None):
        "The outcome, and the lines of the table; `members`: a model's word and its rows."
        runs = [Member(self.folder / f"run-{weight}", self.config(data)) for weight, data in members]
        target = Target(self.folder, self.folder / "made.csv")
        outcome = predict_runs(task or Named(), runs, self.context, target, how)
        return outcome, target.out.read_text().splitlines()[1:]


@pytest.fixture
def runs(tmp_path):
    return Runs(tmp_path)


@pytest.mark.parametrize(
    "odd", [("6", "none"), ("6", "others"), ("7", "own")], ids=["no rows", "other rows", "no checkpoint"]
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_run_that_cannot_be_used_costs_the_others_nothing_wherever_it_stands(runs, odd, place):
    if place == 0 and odd[1] == "others":
        odd = ("7", "others")  # the first that can be used says which rows are answered
    members = [("1", "own"), ("2", "own")]
    members.insert(place, odd)
    (status, reason), lines = runs.predicted(*members)
    assert lines == ["a,1.5", "b,1.5", "c,1.5"] and status == "completed"
    assert "the mean of 2 runs" in reason and f"run-{odd[0]} is left out: " in reason


def test_where_the_time_is_short_the_last_runs_are_left_out(runs, monkeypatch):
    left_s = iter([1000.0, 1000.0, 0.0])  # before each run
    monkeypatch.setattr(ensemble, "_left_s", lambda target: next(left_s))
    (status, reason), lines = runs.predicted(("1", "own"), ("2", "own"), ("6", "own"), ("6", "own"))
    assert lines == ["a,1.5", "b,1.5", "c,1.5"] and status == "completed"
    assert reason.endswith("the last 2 of 4 runs are left out: the time is short")


def test_other_samples_that_nothing_names_are_said(runs):
    (_, reason), lines = runs.predicted(("1", "own"), ("2", "scaled"), ("6", "own"))
    assert reason.count("has other test data") == reason.count("run-2 has other test data") == 1
    assert len(lines) == 3
    assert "other test data" not in runs.predicted(("1", "scaled"), ("2", "scaled"))[0][1]


@pytest.mark.parametrize(("how", "value"), [("mean", 3.0), ("rank", 0.5), ("geometric", 12 ** (1 / 3))])
def test_each_way_to_average(runs, how, value):
    (_, reason), lines = runs.predicted(("1", "own"), ("2", "own"), ("6", "own"), how=how)
    assert f"the {how} of 3 runs" in reason
    np.testing.assert_allclose([float(line.partition(",")[2]) for line in lines], value, rtol=1e-6)


class Images(Named):
    "Test images that each run reads in an order of its own; each row of the table has the image's number."

    def test_dataset(self, cfg):
        self.names = cfg.task["data"].split()
        return [{"image_id": name, "x": torch.tensor([float(int(name))])} for name in self.names]

    def predict(self, model, batch):
        return model(batch["x"])

    def submission(self, predictions):
        return {"id": list(self.names), "y": predictions["predictions"][:, 0]}


@pytest.mark.parametrize("others", ["003 001 002", "3 1 2", "002 003 001 007"], ids=["order", "spelling", "more rows"])
def test_rows_in_another_order_are_joined_by_their_ids(runs, others):
    (status, reason), lines = runs.predicted(("1", "001 002 003"), ("2", others), ("6", "001 002 003"), task=Images())
    assert lines == ["001,3.0", "002,6.0", "003,9.0"] and status == "completed"
    assert "the mean of 3 runs" in reason and "left out" not in reason


@pytest.mark.parametrize(("how", "third"), [("mean", 12.0), ("geometric", 108**0.5)])
def test_a_row_that_a_run_lacks_is_the_average_of_the_others(runs, how, third):
    members = ("2", "001 002 003"), ("1", "002 001"), ("6", "003 002 001")
    (_, reason), lines = runs.predicted(*members, task=Images(), how=how)
    assert [float(line.partition(",")[2]) for line in lines][2] == pytest.approx(third, rel=1e-6)
    assert "run-1 has no predictions for 1 of 3 samples" in reason


@pytest.mark.parametrize("others", ["4 5 6", "3 3 1"], ids=["none in common", "twice"])
def test_ids_that_do_not_say_which_row_is_which_leave_the_run_out(runs, others):
    (_, reason), lines = runs.predicted(("1", "1 2 3"), ("6", others), ("2", "1 2 3"), task=Images())
    assert lines == ["1,1.5", "2,3.0", "3,4.5"] and "run-6 is left out: " in reason


def test_of_a_run_that_is_left_out_nothing_is_added():
    mixture = Mixture()
    mixture.add({"predictions": np.array([1.0, 2.0]), "targets": np.array([0.0, 1.0])})
    with pytest.raises(RequestError, match="other samples: 'targets'"):
        mixture.add({"predictions": np.array([100.0, 100.0]), "targets": np.array([1.0, 0.0])})
    assert mixture.arrays()["predictions"].tolist() == [1.0, 2.0] and mixture.count == 1


def test_votes_for_labels_are_joined_by_ids():
    votes = Mixture("vote")
    votes.add({"id": np.array(["a", "b", "c"]), "predictions": np.array([2, 0, 2])})
    votes.add({"id": np.array(["b", "a"]), "predictions": np.array([1, 1])})
    votes.add({"id": np.array(["c", "b", "a"]), "predictions": np.array([1, 1, 1])})
    assert votes.arrays()["predictions"].tolist() == [1, 1, 1]
