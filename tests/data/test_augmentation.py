"Images cropped on the device: the same run for any way of reading them, and after a cut."

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import spectrakit as sk

WORDS = ("data.batch_size=8", "trainer.max_epochs=3", "optimizer.lr=0.01", "data.shuffle=true")


class Rows(Dataset):
    "Images one by one, as a data set of files has them."

    def __init__(self, columns):
        self.columns = columns

    def __len__(self):
        return len(self.columns[0])

    def __getitem__(self, row):
        return tuple(column[row] for column in self.columns)


class Pictures(sk.Task):
    "Brightness of noise in bytes, by a linear layer."

    def __init__(self, form=TensorDataset):
        self.form = form

    def datasets(self, cfg):
        pixels = torch.randint(0, 256, (44, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
        columns = pixels, pixels.float().mean((1, 2, 3)) / 255
        return self.form(columns) if self.form is Rows else TensorDataset(*columns), TensorDataset(*columns)

    def model(self, cfg):
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 1), nn.Flatten(0))

    def loss(self, model, batch):
        images = sk.random_crop(batch[0], padding=2) if model.training else batch[0]
        return (model(images.float() / 255) - batch[1]).square().mean()


WAYS = {
    "resident": (TensorDataset, ()),
    "gathered": (TensorDataset, ("data.resident_gib=0",)),
    "one by one": (Rows, ("dataloader.num_workers=0",)),
}


def test_any_way_of_reading_gives_the_same_run(train):
    runs = {name: train(Pictures(form), *WORDS, *words, name=name) for name, (form, words) in WAYS.items()}
    first = runs["resident"]
    assert [run.status for run in runs.values()] == ["completed"] * 3
    assert all(torch.equal(first.weights(), run.weights()) for run in runs.values())
    assert all(first.column("step", "loss") == run.column("step", "loss") for run in runs.values())


@pytest.mark.parametrize("calls", [3, 9])
def test_a_run_that_was_cut_goes_on_to_the_bit(train, calls):
    asked = iter(range(10**9))
    whole = train(Pictures(), *WORDS, name="whole")
    cut = train(Pictures(), *WORDS, name="cut", stop=lambda: next(asked) >= calls)
    rest = train(Pictures(), *WORDS, name="cut", resume=True)
    assert cut.status == "interrupted" and rest.status == "completed"
    assert torch.equal(whole.weights(), rest.weights())
