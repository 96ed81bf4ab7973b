"""Classify texts of any length: the module of a docstring, by its words."""

import inspect
import random
import re
import sys
import zlib

import torch
from torch import nn
from torch.nn import functional as F

import spectrakit as sk

MODULES = ("datetime", "pathlib", "statistics")
WORDS = 2000  # rows of the embedding; a word has the row of its hash


def texts():
    "Docstrings of Python's standard library with the number of their module."
    found = []
    for label, name in enumerate(MODULES):
        module = __import__(name)
        objects = [o for _, c in inspect.getmembers(module, inspect.isclass) for _, o in inspect.getmembers(c)]
        docs = {inspect.getdoc(o) or "" for o in [*objects, *vars(module).values()]}
        found += [(doc, label) for doc in sorted(docs) if len(doc.split()) > 5]
    random.Random(0).shuffle(found)
    return [{"words": rows(doc), "label": label} for doc, label in found]


def rows(doc):
    "Row numbers of the words of a text."
    return torch.tensor([1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in re.findall(r"[a-z]+", doc.lower())])


class Docstrings(sk.Task):
    def datasets(self, cfg):
        samples = texts()
        return samples[40:], samples[:40]

    def collate(self, samples):  # padding is row 0, which counts neither in the mean nor in the loss
        words = nn.utils.rnn.pad_sequence([s["words"] for s in samples], batch_first=True)
        return words, torch.tensor([s["label"] for s in samples])

    def model(self, cfg):
        return nn.Sequential(nn.EmbeddingBag(WORDS, 32, mode="mean", padding_idx=0), nn.Linear(32, len(MODULES)))

    def loss(self, model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])

    def metrics(self, outputs, batch):
        return {"accuracy": ((outputs.argmax(1) == batch[1]).sum(), len(outputs))}


run = sk.fit(Docstrings(), "trainer.max_epochs=20", "optimizer.lr=0.02", "data.batch_size=16", *sys.argv[1:])
print(run.status, run.metrics)
