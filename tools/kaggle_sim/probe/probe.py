"""The smallest kernel that trains: it learns a line, and writes a submission.

What pushes it writes the cell that installs the kit in front of it.
"""

import json
import os
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

import spectrakit as sk

settings = json.loads(
    os.environ.get("PROBE", "{}")
)  # what the accident wants: words, seconds that a step takes, MiB that a weight has


class Line(sk.Task):
    "A line through 64 points."

    def datasets(self, cfg):
        x = torch.linspace(-1, 1, 64)[:, None]
        return TensorDataset(x, 2 * x + 1), TensorDataset(x[::4], 2 * x[::4] + 1)

    def model(self, cfg):
        ballast = nn.Linear(1, 1)
        ballast.weight.data = ballast.weight.data.repeat(int(settings.get("mib", 0) * 2**18) or 1, 1)
        return nn.ModuleDict({"line": nn.Linear(1, 1), "ballast": ballast})

    def loss(self, model, batch):
        if model.training:
            time.sleep(settings.get("step_s", 0))
        return nn.functional.mse_loss(model["line"](batch[0]), batch[1])

    def predict(self, model, batch):
        return model["line"](batch[0])

    def test_dataset(self, cfg):
        return TensorDataset(torch.linspace(-1, 1, 10)[:, None])

    def submission(self, predictions):
        return {"id": range(10), "y": predictions[:, 0].round(3)}


if __name__ == "__main__":
    print(sk.detect().table(), flush=True)
    config = sk.compose(
        "trainer=kaggle_safe",
        "trainer.max_epochs=4",
        "data.micro_batch_size=8",
        "trainer.log_every_n_steps=1",
        "checkpoint.every_n_steps=4",
        "dataloader.num_workers=0",
        *settings.get("words", []),
    )
    run = sk.fit(Line(), config, resume="auto", predict="/kaggle/working/submission.csv")
    run.raise_for_status()
    print(f"probe: {run.status}", flush=True)
