"`sk.check`: a row for each part of a task, what fails as a row, a wrong request as an error, and nothing left behind."

import os

import pytest
import torch

from helpers import task, tree_hashes
from spectrakit.api.check import check
from spectrakit.cli.main import main
from spectrakit.config.compose import compose
from spectrakit.system.errors import RequestError
from spectrakit.task.checks.check_results import PART_NAMES
from tasks import Line

INLINE = ("launch.mode=inline", "trainer.accelerator=cpu", "data.batch_size=8")
slow = pytest.mark.slow


class BadMetric(Line):
    def metrics(self, outputs, batch):
        return {"mae": (outputs - batch[1], len(outputs))}


class BadData(Line):
    def datasets(self, cfg):
        return {}["train"]


class Wide(Line):
    def model(self, cfg):
        return torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Flatten(0))


class NoMemory(Line):
    def loss(self, model, batch):
        raise MemoryError("out of memory")


class Ends(Line):
    def loss(self, model, batch):
        os._exit(3)


class Kept(Line):
    "Its model is an object that somebody holds."

    def __init__(self):
        self.net = super().model(compose())
        self.before = [q.detach().clone() for q in self.net.parameters()]

    def model(self, cfg):
        return self.net


@slow
def test_a_task_that_works_has_a_row_for_each_part_and_is_as_it_was(here):
    kept = Kept()
    report = check(kept, *INLINE)
    assert report.ok and [result.part for result in report.results] == list(PART_NAMES)
    assert "Kept: the contract holds" in str(report) and "val_mae" in str(report) and "<table>" in report._repr_html_()
    assert all(torch.equal(a, b) for a, b in zip(kept.before, kept.net.parameters(), strict=True))
    assert kept.losses == 0 and not tree_hashes(here)


@pytest.mark.parametrize(
    "wrong, part, says",
    [
        (BadData, "data", ("BadData.datasets", "KeyError")),
        (Wide, "loss", ("Wide.loss", "4", "3")),
        (BadMetric, "evaluation", ("BadMetric.metrics", "mae", "sum")),
        (NoMemory, "loss", ("ended early", "out of memory")),
    ],
)
def test_a_part_that_fails_is_the_last_row(here, wrong, part, says):
    report = check(wrong(), compose(*INLINE), "data.micro_batch_size=4")
    last = report.results[-1]
    assert not report.ok and last.part == part and all(text in last.sentence for text in says)
    assert [result.part for result in report.results] == list(PART_NAMES[: len(report.results)])
    assert not any(result.error for result in report.results[:-1]) and not tree_hashes(here)


@pytest.mark.parametrize(
    "words, says",
    [
        (("trainer.max_epoch=3",), "trainer.max_epochs"),
        (("checkpoint.monitor=val_f1",), "val_f1"),
        (("watchdog.limit=soon",), "watchdog.limit"),
    ],
)
def test_a_wrong_request_raises(here, words, says):
    with pytest.raises(RequestError, match=says):
        check(Line(), *INLINE, *words)
    with pytest.raises(RequestError, match="config must be a Config, not dict"):
        check(Line(), {})


def test_what_a_run_would_say_is_a_note(here):
    class Summed(Line):
        def loss(self, model, batch):
            return ((model(batch[0]) - batch[1]) ** 2).sum()

    report = check(Summed(), *INLINE, "training.gradient_accumulation_steps=2")
    assert report.ok and any("loss" in note for note in report.notes) and "note: " in str(report)


@slow
def test_the_command_says_it_by_its_exit_status(here, capsys):
    words = ("trainer.accelerator=cpu", "data.batch_size=8")
    assert main(["check", task("Line"), *words]) == 0
    out, err = capsys.readouterr()
    assert "Line: the contract holds" in out and "✓ checkpoint" in out and not err
    assert main(["check", task("LossIsNone"), *words]) == 1
    assert "✗ loss" in capsys.readouterr().out
    assert main(["check", task("Line"), "trainer.max_epoch=3"]) == 2
    assert main(["check", *words]) == 2
    assert "spectrakit check coffee" in capsys.readouterr().err and not tree_hashes(here)


@slow
def test_a_process_that_dies_is_told_and_not_started_again(here):
    report = check(Ends(), "trainer.accelerator=cpu", "data.batch_size=8", "launch.max_restarts=2")
    assert [(result.part, bool(result.error)) for result in report.results][-1] == ("loss", True)
    assert "exit status 3" in report.results[-1].error and "/logs" not in str(report) and not tree_hashes(here)


@slow
def test_two_ranks_try_it_together(here):
    words = ("trainer.accelerator=cpu", "trainer.devices=2", "data.batch_size=8")
    report = check(task("Line"), *words)
    assert report.ok and [result.part for result in report.results] == list(PART_NAMES)
    report = check(task("LossIsNone"), *words)
    assert [result.part for result in report.results if result.error] == ["loss"]
    report = check(task("ByMethod"), *words)
    assert "the model inside DDP, which has no `predict_one`" in report.results[-1].error


@slow
def test_two_ranks_put_a_shared_out_model_together_and_load_it_back(here):
    words = ("trainer.accelerator=cpu", "trainer.devices=2", "distributed.strategy=fsdp", "data.batch_size=8")
    report = check(task("Line"), *words, "training.ema_decay=0.9")
    assert report.ok and report.results[-1].part == "checkpoint" and report.results[-1].detail.endswith(" MiB"), report
    report = check(task("Forgetful"), *words)
    assert "Forgetful.optimizer cannot load what it has saved" in report.results[-1].error
