"""A loss that is no mean over samples is told before the first step, for every micro batch size; a true mean is not."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, IterableDataset

from spectrakit.api.actions import fit
from spectrakit.task.task import Task

WORDS = 11


class Texts(Dataset):
    "Sentences of unequal numbers of words."

    def __init__(self, lengths):
        self.lengths = lengths

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        words = torch.randint(1, WORDS, (self.lengths[index],), generator=torch.Generator().manual_seed(index))
        return {"words": words, "level": words.float().mean()}


class Stream(IterableDataset):
    "The same, from the beginning to the end alone."

    def __init__(self, texts):
        self.texts = texts

    def __iter__(self):
        return iter([self.texts[n] for n in range(len(self.texts))])

    def __len__(self):
        return len(self.texts)


UNEVEN = [3 + (5 * n) % 17 for n in range(24)]


class Tagger(Task):
    "Predicts each word from itself; `collate` pads."

    def __init__(self, lengths=UNEVEN, stream=False):
        self.texts = Stream(Texts(lengths)) if stream else Texts(lengths)

    def datasets(self, cfg):
        return self.texts, None

    def model(self, cfg):
        return nn.Sequential(nn.Embedding(WORDS, 8), nn.Linear(8, WORDS))

    def collate(self, samples):
        words = nn.utils.rnn.pad_sequence([s["words"] for s in samples], batch_first=True)
        return {"words": words, "mask": words > 0, "level": torch.stack([s["level"] for s in samples])}

    def costs(self, model, batch):
        "What each word costs, Tensor [samples, words]; 0 in padding."
        scores = model(batch["words"])
        return F.cross_entropy(scores.transpose(1, 2), batch["words"], reduction="none") * batch["mask"]


class MaskedMean(Tagger):
    def loss(self, model, batch):
        return self.costs(model, batch).sum() / batch["mask"].sum()


class Ignored(Tagger):
    def loss(self, model, batch):
        labels = batch["words"].masked_fill(~batch["mask"], -100)
        return F.cross_entropy(model(batch["words"]).transpose(1, 2), labels)


class Weighted(Tagger):
    "Rare classes weigh more: a mean over these weights."

    def loss(self, model, batch):
        scores = model(batch["words"][:, :1]).squeeze(1)
        return F.cross_entropy(scores, batch["words"][:, 0], torch.arange(1.0, WORDS + 1))


class Moments(MaskedMean):
    def loss(self, model, batch, moment=None):
        return super().loss(model, batch) if moment is not None else 1 / 0


class Packed(Tagger):
    "All words of a batch in a row, as for attention over documents of unequal lengths: no dimension of samples."

    def collate(self, samples):
        return {"words": torch.cat([s["words"] for s in samples])[None]}

    def loss(self, model, batch):
        return F.cross_entropy(model(batch["words"]).transpose(1, 2), batch["words"])


class Listed(Tagger):
    "A list with a tensor of each sample."

    def collate(self, samples):
        return [s["words"] for s in samples]

    def loss(self, model, batch):
        words = torch.cat(batch)
        return F.cross_entropy(model(words), words)


class OfEach(Tagger):
    "A true mean: of each sentence's own mean."

    def loss(self, model, batch):
        return (self.costs(model, batch).sum(1) / batch["mask"].sum(1)).mean()


class OfEachInList(Listed):
    def loss(self, model, batch):
        return torch.stack([F.cross_entropy(model(words), words) for words in batch]).mean()


class Summed(Tagger):
    "A sum with its weight."

    def loss(self, model, batch):
        return self.costs(model, batch).sum(), batch["mask"].sum()


class Levels(Tagger):
    "A true mean, of a loss that does not know of lengths, with a penalty that all batches share."

    def loss(self, model, batch):
        penalty = 0.01 * sum(q.square().sum() for q in model.parameters())
        return F.mse_loss(model(batch["words"][:, :1]).mean((1, 2)), batch["level"]) + penalty


class Noisy(Tagger):
    "Draws random numbers: nobody can say."

    def loss(self, model, batch):
        return self.costs(model, batch).mean() + torch.rand(())


def said(task, tmp_path, size: int, *more: str) -> list[str]:
    "What a run in micro batches of `size` says of means."
    words = (f"run.dir={tmp_path}", "trainer.accelerator=cpu", "launch.mode=inline", "run.console=none")
    sizes = (f"data.micro_batch_size={size}", f"accumulate_grad_batches={8 // size}", "trainer.max_steps=1")
    run = fit(task, *words, *sizes, "checkpoint.enabled=false", *more, show=False)
    assert run.status == "completed", run.error
    return [e["text"] for e in run.events if e["type"] == "message" and "is no mean over" in e["text"]]


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("task", [MaskedMean, Ignored, Weighted, Moments, Packed, Listed], ids=lambda t: t.__name__)
def test_an_uneven_mean_is_told_for_every_micro_batch_size(tmp_path, task, size):
    (text,) = said(task(), tmp_path, size)
    assert text.startswith(f"{task.__name__}.loss is no mean") and "(sum, weight)" in text


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("task", [OfEach, OfEachInList, Summed, Levels, Noisy], ids=lambda t: t.__name__)
def test_a_true_mean_and_a_weighted_sum_are_not(tmp_path, task, size):
    assert said(task(), tmp_path, size) == []


@pytest.mark.parametrize("size", [1, 2])
def test_counts_that_are_equal_in_the_first_micro_batches_are_found_uneven(tmp_path, size):
    assert said(MaskedMean([9, 9, 9, 9, 4, 9, 15, 9] * 3), tmp_path, size, "data.shuffle=false")
    assert not said(MaskedMean([9] * 24), tmp_path, size, "data.shuffle=false")


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_and_streams_are_read_in_the_same_way(tmp_path, workers):
    assert said(MaskedMean(), tmp_path, 1, f"dataloader.num_workers={workers}")
    assert said(MaskedMean(stream=True), tmp_path, 1, f"dataloader.num_workers={workers}")
    assert not said(OfEach(stream=True), tmp_path, 1, f"dataloader.num_workers={workers}")
