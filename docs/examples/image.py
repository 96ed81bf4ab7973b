"""Classify images: scanned digits, augmented in training alone."""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import spectrakit as sk

digits = load_digits()
PIXELS = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16


class Scans(Dataset):
    def __init__(self, numbers, train=False):
        self.numbers, self.train = numbers, train

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        number = self.numbers[index]
        image = PIXELS[number]
        if self.train:  # random numbers are seeded for each sample
            image = image.roll(int(torch.randint(-1, 2, ())), dims=2)
        return {"image": image, "id": number, "label": int(digits.target[number])}


class Images(sk.Task):
    def datasets(self, cfg):
        return Scans(range(1200), train=True), Scans(range(1200, 1500))

    def test_dataset(self, cfg):
        return Scans(range(1500, 1797))

    def model(self, cfg):
        return nn.Sequential(
            nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
        )

    def loss(self, model, batch):
        return F.cross_entropy(model(batch["image"]), batch["label"])

    def predict(self, model, batch):
        return model(batch["image"])

    def metrics(self, outputs, batch):
        return {"accuracy": ((outputs.argmax(1) == batch["label"]).sum(), len(outputs))}

    def submission(self, predictions):
        return {"id": predictions["id"], "digit": predictions["predictions"].argmax(1)}


run = sk.fit(Images(), "trainer.max_epochs=8", *sys.argv[1:], predict="submission.csv")
print(run.status, run.metrics)
