"""The task `lm` in processes: on the command line, on one rank and two, with DDP, FSDP and DiLoCo; cut in the middle of
a stream three times in a row; against a plain loop of transformers.
"""

import json

import pytest
import torch

import tiny_lm
from helpers import only_run, run_cli
from in_process import furthest, trainer_in, weights
from lm_runs import BASE, DILOCO, TWO, Cut, run, save_corpus, steps_and_losses, words
from spectrakit.checkpoint.store import find_checkpoint, load_state
from spectrakit.config.compose import compose
from spectrakit.lm.language_model import LanguageModel

pytestmark = pytest.mark.slow  # every test here trains a model of transformers

CUTS = (7, 5, 9)  # the loss at which each of the first sessions breaks
AHEAD = ("dataloader.num_workers=3", "data.shuffle_buffer=20")
ON_TWO = (5, 4, 5)  # where a rank has one loss in a step: behind steps 3, 6 and 9, in the middle of rounds of four


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return save_corpus(tmp_path_factory.mktemp("lm"))


@pytest.mark.parametrize(
    "more",
    [(), ("task.lengths=dynamic",), ("task.lengths=padded", "data.samples_per_epoch=40"), DILOCO, AHEAD],
    ids=["packed", "dynamic", "short-epochs", "diloco", "ahead"],
)
def test_cut_three_times_in_the_middle_of_a_stream_it_is_the_same_to_the_bit(tmp_path, corpus, more):
    train = trainer_in(tmp_path)
    given = (*words(corpus), "optimizer.name=adamw", "data.shuffle=true", *more)
    whole = train(Cut(), *given, "dataloader.num_workers=0", name="whole")  # tokenized in line, the others ahead
    assert whole.status == "completed", whole.reason
    seen: dict[int, float] = {}
    for session, at in enumerate((*CUTS, None)):
        cut = train(Cut(at), *given, name="cut", resume=session > 0)
        seen |= steps_and_losses(cut.events)
        if at is not None:
            assert cut.status == "failed" and "cut" in cut.reason
            kept = load_state(find_checkpoint(cut.folder / "checkpoints")[0])[0]
            assert kept["stream"]["state"]["documents"]["buffer"] and kept["stream"]["state"]["pending"]
    assert cut.status == "completed", cut.reason
    assert torch.equal(cut.weights(), whole.weights())
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
    assert train(Cut(7), *given).status == "failed"
    kept = load_state(find_checkpoint(tmp_path / "run" / "checkpoints")[0])[0]["stream"]
    monkeypatch.setattr(documents.FileCorpus, "rows", noted)
    assert train(Cut(), *given, resume=True).status == "completed"
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


@pytest.mark.parametrize(
    ("strategy", "cuts"),
    [
        pytest.param("ddp", ON_TWO, marks=pytest.mark.long),
        pytest.param("fsdp", ON_TWO, marks=pytest.mark.long),
        ("fsdp", (9,)),
        ("diloco", ON_TWO),
    ],
)
def test_two_ranks_learn_what_one_does_and_go_on_to_the_bit(tmp_path, corpus, strategy, cuts):
    given = (*words(corpus, "task.lengths=dynamic"), *TWO, f"distributed.strategy={strategy}", "diloco.max_steps=4")
    outcome, events = run(tmp_path / "a", Cut(), *given)
    assert outcome.status == "completed", outcome
    seen: dict[int, float] = {}
    for session, at in enumerate((*cuts, None)):
        outcome, told = run(tmp_path / "b", Cut(at), *given, kind="resume" if session else "train")
        assert outcome.status == ("completed" if at is None else "failed"), outcome
        seen |= steps_and_losses(told)
    assert furthest(weights(tmp_path / "a"), weights(tmp_path / "b")) == 0.0
    assert seen == steps_and_losses(events)
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
