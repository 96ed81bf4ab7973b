"""Distil a large network into a small one: the student learns the labels and the teacher's probabilities."""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import spectrakit as sk


class Teacher(sk.Task):
    width = 256

    def datasets(self, cfg):
        digits = load_digits()
        x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
        return TensorDataset(x[:1200], y[:1200]), TensorDataset(x[1200:], y[1200:])

    def model(self, cfg):
        return nn.Sequential(nn.Linear(64, self.width), nn.ReLU(), nn.Linear(self.width, 10))

    def loss(self, model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])

    def metrics(self, outputs, batch):
        return {"accuracy": ((outputs.argmax(1) == batch[1]).sum(), len(outputs))}


class Student(Teacher):
    width = 8

    def __init__(self, teacher):
        self.teacher = teacher.requires_grad_(False)  # saved, moved and restored with the model

    def loss(self, model, batch):
        outputs, label = model(batch[0]), super().loss(model, batch)
        if not model.training:
            return label
        soft = F.kl_div((outputs / 3).log_softmax(1), (self.teacher(batch[0]) / 3).softmax(1), reduction="batchmean")
        return 0.5 * label + 0.5 * 9 * soft


words = ("optimizer.lr=0.01", "trainer.max_epochs=10", *sys.argv[1:])
teacher = sk.fit(Teacher(), *words, "run.name=teacher").raise_for_status()
student = sk.fit(Student(teacher.load_model(Teacher())), *words, "run.name=student").raise_for_status()
print(student.status, teacher.metrics, student.metrics)
