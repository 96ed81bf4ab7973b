"Data that change while a run goes on, and batches of unusual tensors."

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from helpers import why_failed
from spectrakit.runs.events import last_event
from spectrakit.task.task import Task

X = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
Y = X.sum(1, keepdim=True).sin()
BETA = pytest.mark.filterwarnings("ignore:.*(in beta state|in prototype stage)")  # torch says so of these tensors
PARTS = ("data.batch_size=4", "dataloader.num_workers=0")


class Rows(Dataset):
    "Samples whose number, and the shape of number 13, others may change."

    length, short = 16, False

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return (X[index, :3] if self.short and index == 13 else X[index]), Y[index]


class Changing(Task):
    "`change` is called with the data set and the epoch before each epoch."

    def __init__(self, change=lambda rows, epoch: None):
        self.change, self.rows = change, Rows()

    def datasets(self, cfg):
        return self.rows, TensorDataset(X, Y)

    def model(self, cfg):
        return torch.nn.Linear(4, 1)

    def loss(self, model, batch):
        return F.mse_loss(model(batch[0]), batch[1])

    def on_epoch(self, model, moment):
        self.change(self.rows, moment.epoch)


def shortened(rows, epoch):
    rows.short = epoch >= 2


def test_a_batch_that_cannot_be_made_in_the_third_epoch_ends_the_run_with_its_last_step_saved(train):
    run = train(Changing(shortened), *PARTS, "trainer.max_epochs=4", name="a")
    assert run.status == "failed" and run.reason.startswith("The samples of a batch differ in shape"), run.reason
    assert last_event(run.events, "end")["step"] == 11  # sample 13 is in the last batch of four
    mended = train(Changing(), *PARTS, "trainer.max_epochs=4", name="a", resume=True)
    plain = train(Changing(), *PARTS, "trainer.max_epochs=4", name="b")
    assert torch.equal(mended.weights(), plain.weights())


def test_one_that_cannot_be_made_in_the_first_step_refuses_the_run(train):
    why_failed(
        train(Changing(lambda rows, epoch: setattr(rows, "short", True)), "data.batch_size=16", *PARTS[1:]),
        "differ in shape",
    )


def test_a_data_set_that_has_shrunk_is_a_sentence_and_its_last_step_is_saved(train):
    run = train(Changing(lambda rows, epoch: setattr(rows, "length", 16 - 4 * epoch)), *PARTS, "trainer.max_epochs=3")
    assert run.status == "failed" and run.reason.startswith("The data set has 12 samples now, and had 16"), run.reason
    assert last_event(run.events, "end")["step"] == 4 and run.weights().isfinite().all()


def test_a_data_set_that_grows_is_read_as_far_as_it_went_and_that_is_said_once(train):
    def grown(rows, epoch):
        rows.length = 8 + 4 * min(epoch, 2)

    task = Changing(grown)
    task.rows.length = 8
    run = train(task, *PARTS, "trainer.max_epochs=3", "data.shuffle=true", name="a")
    said = [e["text"] for e in run.events if e["type"] == "message" and "at the start" in e["text"]]
    assert said == ["the data set has 12 samples now, and had 8 at the start: only the first 8 are read"]
    plain = Changing()
    plain.rows.length = 8
    plain = train(plain, *PARTS, "trainer.max_epochs=3", "data.shuffle=true", name="b")
    assert torch.equal(run.weights(), plain.weights())


class Collated(Changing):
    "Its `collate` makes sparse or nested tensors, its loss dense ones of them."

    def __init__(self, form):
        super().__init__()
        self.form = form

    def collate(self, samples):
        x = torch.stack([sample[0] for sample in samples])
        made = {
            "coo": x.to_sparse,
            "csr": x.to_sparse_csr,
            "csc": x.to_sparse_csc,
            "nested": lambda: torch.nested.nested_tensor(list(x)),
            "jagged": lambda: torch.nested.nested_tensor(list(x), layout=torch.jagged),
            "dense": lambda: x,
        }
        return made[self.form](), torch.stack([sample[1] for sample in samples])

    def predict(self, model, batch):
        x = batch[0]
        return model(torch.nested.to_padded_tensor(x, 0.0, (x.size(0), 4)) if x.is_nested else x.to_dense())

    def loss(self, model, batch):
        return F.mse_loss(self.predict(model, batch), batch[1])


@BETA
@pytest.mark.parametrize("form", ["coo", "csr", "csc", "jagged"])
def test_sparse_and_nested_batches_train_as_dense_ones_do(train, form):
    run, dense = (train(Collated(f), *PARTS, "trainer.max_epochs=2", name=f) for f in (form, "dense"))
    assert run.status == "completed", run.reason
    assert torch.equal(run.weights(), dense.weights())


@BETA
def test_a_nested_batch_without_a_shape_is_refused(train):
    why_failed(train(Collated("nested"), *PARTS), "layout=torch.jagged")


class Expanded(Changing):
    "A buffer of one number that is seen four times."

    expand = True

    def model(self, cfg):
        model = super().model(cfg)
        model.register_buffer("scale", torch.ones(1).expand(4) if self.expand else torch.ones(4))
        return model

    def predict(self, model, batch):
        return model(batch[0] * model.scale)

    def loss(self, model, batch):
        return F.mse_loss(self.predict(model, batch), batch[1])


def test_a_model_with_an_expanded_buffer_trains_and_goes_on(train):
    run = train(Expanded(), *PARTS, "trainer.max_epochs=3", "trainer.max_steps=7", name="a")
    assert run.status == "completed", run.reason
    words = ("trainer.max_epochs=3", "trainer.max_steps=12")
    run = train(Expanded(), *PARTS, *words, "resume.allow=[trainer.max_steps]", name="a", resume=True)
    plain = Expanded()
    plain.expand = False
    assert run.status == "completed" and torch.equal(run.weights(), train(plain, *PARTS, *words, name="b").weights())


@pytest.mark.parametrize("length", [16.0, -1, "16"])
def test_a_length_that_is_none_is_a_sentence(train, length):
    task = Changing()
    task.rows.length = length
    why_failed(train(task, *PARTS), "training data set is not known.*whole number")
