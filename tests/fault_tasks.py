"""Tasks for the fault matrix: what TINY_FAULTS says goes wrong, at the moment that it names.

`PLACE RANK NUMBER WHAT`, divided by `;`: at the NUMBER-th call of PLACE (data, model, loss, read, metric, predict) in a
process that is rank RANK, counted from its start, the method WHAT; `WHAT@3` calls it with the number 3. It happens
once, in all starts together, unless WHAT ends with `!`; what happened is a file `fault-PLACE-RANK-NUMBER`. TINY_STEP_S:
seconds that each training loss takes. TINY_EVAL_S, TINY_PREDICT_S: those of a whole evaluation and of all predictions
on one rank. The option `ballast`: MiB that the model carries along, so that its checkpoints are large enough to be
written in the background.
"""

import errno
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from tasks import SAMPLES, Submitting, Troubled, rows, tensors


def seconds(name: str) -> float:
    return float(os.environ.get(name, "0"))


class Walk(Troubled):
    """A linear relation, learned slowly enough to act in the middle; each of its processes leaves its number in a file
    `pid-RANK`.
    """

    options = {**Troubled.options, "ballast": 0}
    spoil = None  # what is done to the next training loss

    def __init__(self):
        self.counts = Counter()

    def model(self, cfg):
        if "TINY_PIDS" in os.environ:
            Path(f"pid-{os.environ.get('RANK', '0')}").write_text(str(os.getpid()))
        self.happen("model")
        model = self.net()
        if ballast := self.option(cfg, "ballast"):
            model.register_buffer("ballast", torch.ones(ballast, 2**18))
        return model

    def datasets(self, cfg):
        self.happen("data")
        return super().datasets(cfg)

    def net(self):
        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0))

    def during(self, number):
        super().during(number)
        time.sleep(seconds("TINY_STEP_S"))
        self.happen("loss")

    def loss(self, model, batch):
        result = super().loss(model, batch)
        spoil, self.spoil = self.spoil, None
        return spoil(result) if spoil and model.training else result

    def metrics(self, outputs, batch):
        self.happen("metric")
        return super().metrics(outputs, batch)

    def happen(self, place):
        "What is to go wrong at this call of `place`."
        self.counts[place] += 1
        for fault in filter(None, os.environ.get("TINY_FAULTS", "").split(";")):
            where, rank, when, what = fault.split()
            mark = Path(f"fault-{where}-{rank}-{when}")
            if (where, rank, when) != (place, os.environ.get("RANK", "0"), str(self.counts[place])) or (
                mark.exists() and not what.endswith("!")
            ):
                continue
            mark.write_text(str(os.getpid()))
            name, _, number = what.rstrip("!").partition("@")
            getattr(self, name)(*([int(number)] if number else []))

    # what Troubled does not have

    def value(self):
        raise ValueError("as planned")

    def linger_when_told(self):
        "Wait for the file `go`, then keep the process from ending."
        while not Path("go").exists():
            time.sleep(0.02)
        self.linger()

    def rest(self):
        "Wait for the file `rested`."
        while not Path("rested").exists():
            time.sleep(0.02)

    def nan(self):
        self.spoil = lambda loss: loss * float("nan")

    def inf(self):
        self.spoil = lambda loss: loss * float("inf")

    def oom(self):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    def oom_backward(self):
        self.spoil = lambda loss: Breaks.apply(
            loss, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        )

    def value_backward(self):
        self.spoil = lambda loss: Breaks.apply(loss, ValueError("as planned"))

    def tracker(self):
        from accelerate.tracking import TensorBoardTracker

        def refuse(*_, **__):
            raise OSError(errno.ENOSPC, "No space left on device")

        TensorBoardTracker.log = refuse

    def crash(self):
        """Die at a call to the disk that touches a checkpoint: the first time at the first one from now on, then at the
        second, and so on.
        """
        death = 1 + len(list(Path().glob("calls-*")))
        left = [death]

        def count(what):
            left[0] -= 1
            with open(f"calls-{death}", "a") as file:
                file.write(what + "\n")
            if left[0] == 0:
                self.kill()

        watch_disk(count)

    def save(self, call):
        "Die at the `call`-th call to the disk that touches a checkpoint from now on."
        self.count_down(call, self.kill)

    def peer(self, call):
        "Kill rank 1 at that call."
        self.count_down(call, lambda: os.kill(int(Path("pid-1").read_text()), signal.SIGKILL))

    def count_down(self, call, act):
        left = [call]

        def count(what):
            left[0] -= 1
            if left[0] == 0:
                Path(f"aimed-{call:02d}-{what.replace(' ', '-')}").touch()
                act()

        watch_disk(count)

    def eio(self):
        "The disk of the checkpoints answers every call with an error, until it is `well`."
        watch_disk(lambda what: self.refuse())

    def eio_flush(self):
        "It takes everything, and answers with an error when it is told to flush, until it is `well`."
        watch_disk(lambda what: self.refuse() if what == "fsync" else None)

    def refuse(self):
        if not self.is_well:
            raise OSError(errno.EIO, "Input/output error")

    is_well = False

    def well(self):
        self.is_well = True

    def fill_disk(self):
        "Nothing is left of the disk TINY_DISK but TINY_LEFT bytes."
        with open(Path(os.environ["TINY_DISK"]) / "filler", "wb", buffering=0) as file:
            for size in (2**16, 512):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
            file.truncate(file.tell() - int(os.environ.get("TINY_LEFT", "0")))

    def empty_disk(self):
        (Path(os.environ["TINY_DISK"]) / "filler").unlink()

    def slow_disk(self):
        "From now on a flush to the disk takes a minute."
        watch_disk(lambda what: time.sleep(60) if what == "fsync" else None)


class Breaks(torch.autograd.Function):
    "Its backward raises."

    @staticmethod
    def forward(ctx, loss, error):
        ctx.error = error
        return loss.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ctx.error


def watch_disk(act) -> None:
    """Call `act` with a word before each call of this process that opens, makes, renames or removes something below
    checkpoints/, and before each fsync.
    """
    events = {"open": 0, "os.mkdir": 0, "os.rename": 1, "os.remove": 0, "os.rmdir": 0}
    busy, flush = [], os.fsync

    def hook(event, arguments):
        if event not in events or busy:
            return
        path = arguments[events[event]]
        if not isinstance(path, (str, os.PathLike)) or "checkpoints" not in os.fspath(path):
            return
        if event == "open" and (arguments[2] & (os.O_WRONLY | os.O_RDWR)) == 0:
            return
        tell(f"{event.removeprefix('os.')} {Path(path).name}")

    def tell(what):
        busy.append(what)
        try:
            act(what)
        finally:
            busy.pop()

    def fsync(handle):
        tell("fsync")
        flush(handle)

    os.fsync = fsync  # in this training process, which ends with its run
    sys.addaudithook(hook)


class Drops(Walk):
    "With dropout, so that the random state counts: a run that goes on must have it back."

    def net(self):
        return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0))


class Noisy(Dataset):
    "Samples that are read one by one, with noise that is drawn when they are read."

    def __init__(self, samples, task):
        self.samples, self.task = samples, task

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        self.task.happen("read")
        x, y = self.samples[index]
        return x + 0.1 * torch.randn(3), y


class Read(Drops):
    "The same from a loader, with random augmentation."

    def datasets(self, cfg):
        train, valid = super().datasets(cfg)
        return Noisy(rows(train), self), rows(valid)


class Long(Walk):
    "Evaluations and predictions that take their time, shared out among their batches."

    metrics = None

    def datasets(self, cfg):
        return super().datasets(cfg)[0], self.test_dataset(cfg)

    def test_dataset(self, cfg):
        return TensorDataset(*(part[:SAMPLES] for part in tensors()))

    def each(self, whole_s):
        "Sleep one batch's share of `whole_s`."
        time.sleep(whole_s / (SAMPLES / BATCH / int(os.environ.get("WORLD_SIZE", "1"))))

    def loss(self, model, batch):
        if not model.training:
            self.happen("evaluate")
            self.each(seconds("TINY_EVAL_S"))
        return super().loss(model, batch)

    def predict(self, model, batch):
        self.happen("predict")
        self.each(seconds("TINY_PREDICT_S"))
        return super().predict(model, batch)

    def dawdle(self, whole_s):
        "From now on all predictions of a rank take so long."
        os.environ["TINY_PREDICT_S"] = str(whole_s)

    def linger_a_lot(self):
        os.environ["TINY_EVAL_S"] = "120"  # this evaluation and those after it

    submission = Submitting.submission


class Handed(Long):
    "The same with a sample submission, in the folder that the option `data` names."

    options = {**Long.options, "data": ""}

    def sample_submission(self, cfg):
        return Path(self.option(cfg, "data"), "sample_submission.csv")


BATCH = 2  # what runs of Long have for their micro batch
