"""The task `lm` in processes: on the command line, on one rank and two, with DDP, FSDP and DiLoCo; cut in the middle of
a stream three times in a row; against a plain loop of transformers.
"""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

import tiny_lm
from helpers import only_run, run_cli
from in_process import furthest, trainer_in, weights
from spectrakit.checkpoint.store import find_checkpoint, load_state
from spectrakit.config.compose import compose
from spectrakit.handover.job import Job
from spectrakit.handover.job_kind import kind_named
from spectrakit.handover.request import new_request
from spectrakit.launch.launcher import launch
from spectrakit.lm.language_model import LanguageModel
from spectrakit.runs.events import columns, read_events
from spectrakit.system.platforms.detect import detect

pytestmark = pytest.mark.slow  # every test here trains a model of transformers

BASE = (
    "trainer.accelerator=cpu",
    "data.micro_batch_size=4",
    "accumulate_grad_batches=2",
    "scheduler.name=constant",
    "optimizer.lr=0.003",
    "optimizer.momentum=0.9",
    "trainer.log_every_n_steps=1",
    "trainer.max_steps=12",
    "checkpoint.every_n_steps=3",
    "checkpoint.every_n_epochs=null",
    "data.shuffle_buffer=50",
    "task.seq_len=32",
    "task.valid_rows=40",
    "launch.max_restarts=0",
)
TWO = ("trainer.devices=2", "accumulate_grad_batches=1")
DILOCO = ("distributed.strategy=diloco", "diloco.max_steps=4")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    here = tmp_path_factory.mktemp("lm")
    tiny_lm.save_model(here / "tiny")
    tiny_lm.save_lines(here / "texts.jsonl")
    tiny_lm.save_parquet(here / "parts")
    return here


def words(corpus, *more):
    return (*BASE, f"task.model={corpus / 'tiny'}", f"task.data={corpus / 'texts.jsonl'}", *more)


def run(folder, task, *overrides, kind="train"):
    request = new_request(compose(*overrides), replace(detect(environ={}), cores=4))
    outcome = launch(Job(kind_named(kind), folder, request), task, lambda: None)
    return outcome, read_events(folder / "events.jsonl")


class Cut(LanguageModel):
    "Its process breaks at a loss of each of its first sessions; `folder` knows how many there were."

    at = (7, 5, 9)

    def __init__(self, folder: Path, **options):
        super().__init__(**options)
        self.folder, self.losses = folder, 0

    def on_epoch(self, model, moment):
        self.losses = 0 if not self.losses else self.losses

    def loss(self, model, batch, moment=None):
        if moment is not None:
            self.losses += 1
            session = len(list(self.folder.glob("session-*")))
            if session < len(self.at) and self.losses == self.at[session]:
                (self.folder / f"session-{session}").touch()
                raise RuntimeError("cut")
        return super().loss(model, batch)


def steps_and_losses(events) -> dict[int, float]:
    found = columns(events, "step", "step", "loss")
    return dict(zip(found["step"], found["loss"], strict=True))


@pytest.mark.parametrize(
    "more",
    [(), ("task.lengths=dynamic",), ("task.lengths=padded", "data.samples_per_epoch=40"), DILOCO],
    ids=["packed", "dynamic", "short-epochs", "diloco"],
)
def test_cut_three_times_in_the_middle_of_a_stream_it_is_the_same_to_the_bit(tmp_path, corpus, more):
    train = trainer_in(tmp_path)
    task = partial(Cut, tmp_path)
    given = (*words(corpus), "optimizer.name=adamw", "data.shuffle=true", *more)
    for number in range(3):
        (tmp_path / f"session-{number}").touch()  # those sessions are over
    whole = train(task(), *given, name="whole")
    assert whole.status == "completed", whole.reason
    for number in range(3):
        (tmp_path / f"session-{number}").unlink()
    cut, seen = train(task(), *given, name="cut"), {}
    for _ in range(3):
        assert cut.status == "failed" and "cut" in cut.reason
        seen |= steps_and_losses(cut.events)
        assert load_state(find_checkpoint(cut.folder / "checkpoints")[0])[0]["stream"]["state"]["documents"]["buffer"]
        cut = train(task(), *given, name="cut", resume=True)
    assert cut.status == "completed", cut.reason
    assert torch.equal(cut.weights(), whole.weights())
    seen |= steps_and_losses(cut.events)
    assert seen == steps_and_losses(whole.events)


def test_a_resume_reads_no_document_twice(tmp_path, corpus, monkeypatch):
    from spectrakit.lm import documents

    read, original = [], documents.FileCorpus.rows

    def noted(self, shard, place):
        read.append(place)
        return original(self, shard, place)

    train = trainer_in(tmp_path)
    given = (
        *words(corpus),
        "data.shuffle=true",
        "data.shuffle_buffer=5",
        "task.valid=none",
        "data.samples_per_epoch=96",
    )
    task = Cut(tmp_path)
    assert train(task, *given).status == "failed"
    kept = load_state(find_checkpoint(tmp_path / "run" / "checkpoints")[0])[0]["stream"]
    monkeypatch.setattr(documents.FileCorpus, "rows", noted)
    task.at = ()
    assert train(task, *given, resume=True).status == "completed"
    place = kept["state"]["documents"]["cursor"]["place"]
    assert place > 1000 and {p for p in read if p > 1000} == {place}  # beyond a look at the first rows


@pytest.mark.parametrize("lengths", ["packed", "dynamic"])
def test_the_loss_is_that_of_a_plain_loop_of_transformers(tmp_path, corpus, lengths):
    from transformers import AutoModelForCausalLM

    task = LanguageModel()
    given = (*words(corpus, f"task.lengths={lengths}"), "data.shuffle=true", "data.drop_last=true")
    done = trainer_in(tmp_path)(task, *given, "optimizer.name=adamw")
    mine = steps_and_losses(done.events)
    config = compose(*given)
    stream, _ = LanguageModel().datasets(config)
    rows, model = iter(stream), AutoModelForCausalLM.from_pretrained(corpus / "tiny", dtype=torch.float32)
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.0},
            {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
        ],
        lr=0.003,
    )
    task = LanguageModel()
    task.datasets(config)
    for step in range(1, 13):
        batches = [task.collate([next(rows) for _ in range(4)]) for _ in range(2)]
        tokens = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in batches)
        loss = 0.0
        for batch in batches:
            mask = (batch["labels"] != -100).long()  # in the plain loop padding is masked, too
            part = model(input_ids=batch["input"], attention_mask=mask, labels=batch["labels"]).loss
            part = part * int((batch["labels"][:, 1:] != -100).sum()) / tokens
            part.backward()
            loss += part.item()
        optimizer.step()
        optimizer.zero_grad()
        assert mine[step] == pytest.approx(loss, abs=1e-5), step


@pytest.mark.parametrize("strategy", [pytest.param("ddp", marks=pytest.mark.long), "fsdp", "diloco"])
def test_two_ranks_learn_what_one_does_and_go_on_to_the_bit(tmp_path, corpus, strategy):
    given = (*words(corpus, "task.lengths=dynamic"), *TWO, f"distributed.strategy={strategy}", "diloco.max_steps=4")
    (tmp_path / "whole").mkdir()
    for number in range(3):
        (tmp_path / "whole" / f"session-{number}").touch()
    outcome, events = run(tmp_path / "a", Cut(tmp_path / "whole"), *given)
    assert outcome.status == "completed", outcome
    (tmp_path / "parts").mkdir()
    for number in range(2):  # one cut is enough here
        (tmp_path / "parts" / f"session-{number}").touch()
    outcome, _ = run(tmp_path / "b", Cut(tmp_path / "parts"), *given)
    assert outcome.status == "failed"
    outcome, _ = run(tmp_path / "b", Cut(tmp_path / "parts"), *given, kind="resume")
    assert outcome.status == "completed", outcome
    assert furthest(weights(tmp_path / "a"), weights(tmp_path / "b")) == 0.0
    if strategy != "diloco":
        one = trainer_in(tmp_path)(
            LanguageModel(),
            *words(corpus, "task.lengths=dynamic"),
            "optimizer.name=adamw",
            "data.shuffle=true",
            "optimizer.weight_decay=0.01",
            name="one",
        )
        assert furthest(weights(tmp_path / "a"), weights(one.folder)) < 2e-5
    else:
        assert [event["steps"] for event in events if event["type"] == "round"] == [4, 4, 4]


def test_the_command_line_from_parquet_to_generated_texts(tmp_path, corpus):
    given = [word for word in BASE if not word.startswith("trainer.max_steps")]
    done = run_cli(
        tmp_path,
        *("train", "lm", f"task.model={corpus / 'tiny'}", f"task.data={corpus / 'parts'}", *given),
        *("trainer.max_epochs=2", "limits.max_train_batches=8", "task.new_tokens=4"),
        "task.prompts=[one two three, ba be]",
    )
    assert done.returncode == 0, done.stderr
    assert "3 shards of texts, the text is the field 'text'" in done.stdout
    folder = only_run(tmp_path)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["best"]["metrics"]["val_perplexity"] < len(tiny_lm.VOCABULARY)
    done = run_cli(tmp_path, "predict", "lm", folder, "--out", "samples.csv")
    assert done.returncode == 0, done.stderr
    header, first, _ = (tmp_path / "samples.csv").read_text().splitlines()
    assert header == "prompt,completion" and first.startswith("one two three,")
    assert len(first.partition(",")[2].split()) == 4
