"Whatever `predict` returns, all folds are trained, and what they predicted is put together or kept with a sentence."

import tracemalloc

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import spectrakit as sk
from spectrakit.config.compose import compose
from spectrakit.prediction.ensemble import mean_of_models
from spectrakit.system.array_archive import save_arrays
from spectrakit.task.task import Task

WORDS = ("trainer.accelerator=cpu", "launch.mode=inline", "data.batch_size=8", "trainer.max_epochs=1", "run.dir=runs")


class Rows(Dataset):
    "Samples with an id; the number of each is in its inputs, too."

    def __init__(self, rows, named=True):
        self.rows, self.named = list(rows), named

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        named = {"id": f"{row:04}"} if self.named else {}
        return {"x": torch.full((3,), float(row)), "label": torch.tensor(row % 2), **named}


class Numbered(Task):
    "What is predicted tells the sample, and in the test data the fold that predicted it."

    def datasets(self, cfg):
        self.fold = cfg.folds.fold or 0
        return Rows(range(23)), None

    def test_dataset(self, cfg):
        self.fold = cfg.folds.fold or 0
        return Rows(range(5))

    def model(self, cfg):
        return nn.Linear(3, 2)

    def loss(self, model, batch):
        return nn.functional.cross_entropy(model(batch["x"] / 23), batch["label"])

    def predict(self, model, batch):
        return batch["x"][:, 0]


def made(task, *words, folds=3, **more):
    return sk.cross_validate(task, compose(*WORDS, *words), folds=folds, show=False, **more)


class Pair(Numbered):
    def predict(self, model, batch):
        x = batch["x"]
        return {"mean": x[:, :1], "sigma": torch.ones(len(x), 2) * (self.fold + 1)}

    def metrics_all(self, predictions, targets):
        return {"far": (predictions["mean"][:, 0] - targets).abs().max() + predictions["sigma"].shape[1]}

    def submission(self, predictions):
        return {"id": predictions["id"], "y": predictions["mean"][:, 0], "s": predictions["sigma"][:, 0]}


def test_a_mapping_is_carried_from_the_folds_to_the_table(here):
    cv = made(Pair(), "checkpoint.monitor=val_far", "checkpoint.mode=min", predict="table.csv")
    assert cv.values["mean"][:, 0].tolist() == list(range(23)) and cv.values["sigma"].shape == (23, 2)
    assert cv.score == max(abs(row - row % 2) for row in range(23)) + 2
    assert cv.ids["id"].tolist() == [f"{row:04}" for row in range(23)]
    assert cv.test["sigma"].tolist() == [[2.0, 2.0]] * 5 and not cv.test_missing
    assert (here / "table.csv").read_text().splitlines()[:2] == ["id,y,s", "0000,0.0,2.0"]
    again = sk.open_cross_validation(cv.path)
    assert (
        again.values["mean"].tolist() == cv.values["mean"].tolist()
        and again.ids["id"].tolist() == cv.ids["id"].tolist()
    )
    assert sk.report(cv).is_file()


def test_a_mapping_is_averaged_over_seeds_and_repeats(here):
    cv = made(Pair(), "folds.seeds=2", "folds.repeats=2", "checkpoint.monitor=val_far", "checkpoint.mode=min", folds=2)
    assert cv.values["mean"][:, 0].tolist() == list(range(23)) and len(cv.single_scores) == 4
    assert cv.score == cv.single_scores[0]


class Boxes(Numbered):
    "Boxes: as many as the sample's number says, and one more with each fold; `same`: as many in each fold."

    same = False
    per_sample = None

    def predict(self, model, batch):
        more = 1 if self.same else 1 + self.fold
        return [torch.full((self.per_sample or more + int(x[0]) % 2, 4), float(self.fold)) for x in batch["x"]]

    def submission(self, predictions):
        boxes, lengths = predictions["predictions"], predictions.get("prediction_lengths")
        counts = [boxes.shape[1]] * len(boxes) if lengths is None else lengths
        return {
            "id": predictions["id"],
            "boxes": [f"{int(n)}x{box[0, 0]:g}" for n, box in zip(counts, boxes, strict=True)],
        }


class Joining(Boxes):
    def merge(self, predictions):
        return [np.concatenate(boxes) for boxes in zip(*predictions, strict=True)]


class Uniform(Boxes):
    per_sample = 3


class Alike(Boxes):
    same = True


@pytest.mark.parametrize("task", [Boxes, Alike, Uniform])
def test_lists_of_boxes_have_no_mean_and_each_fold_keeps_its_own(here, capsys, task):
    cv = made(task(), predict="table.csv")
    assert cv.status == "completed" and len(cv.trials) == 3
    assert (
        "predictions" not in cv.test and "Write `merge(predictions)`" in cv.test_missing and cv.test_missing in str(cv)
    )
    assert cv.test_missing in capsys.readouterr().err
    assert [float(np.nanmax(fold["predictions"])) for fold in cv.fold_tests] == [0.0, 1.0, 2.0]
    rows = (here / "table.csv").read_text().splitlines()[1:]
    assert len(rows) == 5 and {row[-2:] for row in rows} == {"x0"}  # the first fold's
    values = cv.values if isinstance(cv.values, np.ndarray) else cv.values["predictions"]
    assert values.shape[0] == 23 and np.isfinite(values[:, 0]).all()


def test_what_the_task_merges_is_handed_in(here):
    cv = made(Joining(), predict="table.csv")
    assert cv.test["prediction_lengths"].tolist() == [6, 9, 6, 9, 6] and not cv.test_missing
    assert sorted(set(cv.test["predictions"][0, :6, 0].tolist())) == [0.0, 1.0, 2.0]
    assert (here / "table.csv").read_text().splitlines()[1] == "0000,6x0"


def test_a_merge_that_returns_something_else_costs_no_fold(here, capsys):
    class Wrong(Boxes):
        def merge(self, predictions):
            return predictions[0][:2]

    cv = made(Wrong(), predict="table.csv")
    assert cv.status == "completed" and "Wrong.merge returned 2" in cv.test_missing and cv.test == {}


class Wider(Numbered):
    "A tensor that has another width in each fold."

    def predict(self, model, batch):
        return batch["x"][:, :1].expand(-1, 2 + self.fold)


def test_folds_of_other_widths_are_all_trained(here):
    cv = made(Wider(), predict="table.csv")
    assert (
        cv.status == "completed"
        and len(cv.fold_tests) == 3
        and "arrays of unequal shapes have no mean" in cv.test_missing
    )


class Words(Numbered):
    "Texts as answers: for odd samples what two of three folds say, for even ones a text of its own in each fold."

    def predict(self, model, batch):
        said = ["a", "longer", "longer"][self.fold % 3]
        return [said if int(x[0]) % 2 else f"{self.fold}:{int(x[0])}" for x in batch["x"]]


def test_texts_are_answers_and_are_counted(here):
    cv = made(Words(), predict="table.csv")
    assert cv.test["predictions"].tolist() == ["0:0", "longer", "0:2", "longer", "0:4"]
    assert len(cv.values) == 23 and cv.values[4].endswith(":4") and list(cv.ids) == ["id"]
    assert (here / "table.csv").read_text().splitlines()[2] == "0001,longer"


class Labels(Numbered):
    "Class numbers, of which there are many, as a mapping beside a number with a point."

    def predict(self, model, batch):
        number = torch.tensor([7, 900_000, 900_000][self.fold % 3])
        return {"label": number.expand(len(batch["x"])), "odds": batch["x"][:, 0]}


def test_labels_are_counted_and_never_averaged(here):
    cv = made(Labels())
    assert cv.test["label"].tolist() == [900_000] * 5 and cv.test["label"].dtype.kind == "i"
    assert set(cv.values["label"].tolist()) == {7, 900_000} and cv.values["label"].dtype.kind == "i"


class Turned(Numbered):
    "Each fold reads the test data in another order."

    def test_dataset(self, cfg):
        self.fold = cfg.folds.fold or 0
        return Rows(np.roll(range(5), self.fold), named=self.named)

    named = True


def test_folds_that_read_the_test_data_in_another_order_are_joined_by_id(here):
    cv = made(Turned(), predict="table.csv")
    assert dict(zip(cv.test["id"].tolist(), cv.test["predictions"].tolist(), strict=True)) == {
        f"{row:04}": float(row) for row in range(5)
    }


def test_the_mean_of_files_is_made_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("spectrakit.prediction.prediction_spool.IN_MEMORY", 2**20)
    monkeypatch.setattr("spectrakit.prediction.prediction_spool._BLOCK", 2**18)
    files, shape = [], (400, 2**14)  # 25 MB each
    for number in range(5):
        files.append(tmp_path / f"{number}.npz")
        save_arrays(files[-1], {"predictions": np.full(shape, number, dtype="f4"), "label": np.full(400, number)})
    tracemalloc.start()
    arrays = mean_of_models(files, tmp_path).arrays
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert arrays["predictions"].shape == shape and (np.asarray(arrays["predictions"][::50]) == 2.0).all()
    assert arrays["label"].tolist() == [0] * 400 and peak < 2**23, peak
