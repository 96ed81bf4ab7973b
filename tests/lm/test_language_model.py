"""The task `lm` in processes: on the command line, on one rank and two, with DDP, FSDP and DiLoCo; cut in the middle of
a stream three times in a row; against a plain loop of transformers.
"""

import json
import math

import pytest
import torch

import tiny_lm
from helpers import TESTS, only_run, run_cli
from in_process import furthest, trainer_in, weights
from lm_runs import BASE, DILOCO, TWO, Cut, run, save_corpus, steps_and_losses, words
from spectrakit.api.actions import fit
from spectrakit.checkpoint.store import find_checkpoint, load_state
from spectrakit.config.compose import compose
from spectrakit.lm.exporting import export
from spectrakit.lm.language_model import LanguageModel
from spectrakit.runs.events import read_events

pytestmark = pytest.mark.slow  # every test here trains a model of transformers

CUTS = (7, 5, 9)  # the loss at which each of the first sessions breaks
AHEAD = ("dataloader.num_workers=3", "data.shuffle_buffer=20")
ON_TWO = (5, 4, 5)  # where a rank has one loss in a step: behind steps 3, 6 and 9, in the middle of rounds of four


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return save_corpus(tmp_path_factory.mktemp("lm"))


@pytest.mark.parametrize(
    "more",
    [
        pytest.param((), id="packed"),
        pytest.param(("task.lengths=dynamic",), id="dynamic", marks=pytest.mark.long),
        pytest.param(("task.lengths=padded", "data.samples_per_epoch=40"), id="short-epochs"),
        pytest.param(DILOCO, id="diloco", marks=pytest.mark.long),
        pytest.param(AHEAD, id="ahead", marks=pytest.mark.long),
    ],
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


def rows_by_hand(corpus, lengths: str, part: str = "train") -> list[list[int]]:
    "What a script would learn from, or validate on: the lines in their order, each with its end, without the kit."
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(corpus / "tiny")
    lines = (corpus / "texts.jsonl").read_text().splitlines()
    documents = [
        [*tokenizer(json.loads(line)["text"])["input_ids"], tokenizer.eos_token_id]
        for number, line in enumerate(lines, 1)
        if (number % 20 == 0) == (part == "held")
    ]
    if lengths == "packed":
        documents = [[token for document in documents for token in document]]
    rows = [document[first : first + 32] for document in documents for first in range(0, len(document), 32)]
    return [row for row in rows if len(row) > 1]  # one token predicts none


def loss_by_hand(model, rows: list[list[int]]) -> tuple[torch.Tensor, int]:
    "The mean loss of a token as transformers computes it, with padding masked, and the number of tokens."
    from torch.nn.utils.rnn import pad_sequence

    ids = [torch.tensor(row) for row in rows]
    labels, mask = pad_sequence(ids, True, -100), pad_sequence([torch.ones_like(row) for row in ids], True)
    tokens = sum(len(row) - 1 for row in rows)
    return model(input_ids=pad_sequence(ids, True), attention_mask=mask, labels=labels).loss, tokens


@pytest.mark.parametrize(
    ("lengths", "order"),
    [
        ("packed", "drawn"),
        ("dynamic", "files"),
        ("padded", "files"),
        pytest.param("packed", "files", marks=pytest.mark.long),
        pytest.param("dynamic", "drawn", marks=pytest.mark.long),
        pytest.param("padded", "drawn", marks=pytest.mark.long),
    ],
)
def test_the_loss_is_that_of_a_plain_loop_of_transformers(tmp_path, corpus, lengths, order):
    from transformers import AutoModelForCausalLM

    shuffled = f"data.shuffle={str(order == 'drawn').lower()}"
    given = (*words(corpus, f"task.lengths={lengths}"), shuffled, "data.drop_last=true")
    done = trainer_in(tmp_path)(LanguageModel(), *given, "optimizer.name=adamw")
    mine, rows = steps_and_losses(done.events), rows_by_hand(corpus, lengths)
    if order == "drawn":  # those of the stream, which other tests compare with the texts
        rows = [ids.tolist() for ids, _ in LanguageModel().datasets(compose(*given))[0]]
    model = AutoModelForCausalLM.from_pretrained(corpus / "tiny", dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.0)
    for step in range(12):
        batches = [rows[first : first + 4] for first in (8 * step, 8 * step + 4)]
        parts = [loss_by_hand(model, batch) for batch in batches]
        loss = sum(part * tokens for part, tokens in parts) / sum(tokens for _, tokens in parts)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert mine[step + 1] == pytest.approx(loss.item(), abs=1e-5), step
    with torch.no_grad():
        parts = [loss_by_hand(model, [row]) for row in rows_by_hand(corpus, lengths, "held")[:40]]
    held = sum(float(loss) * tokens for loss, tokens in parts) / sum(tokens for _, tokens in parts)
    (evaluated,) = [event["metrics"] for event in done.events if event["type"] == "eval" and event["step"] == 12]
    assert evaluated["val_loss"] == pytest.approx(held, abs=1e-5)
    assert evaluated["val_perplexity"] == pytest.approx(math.exp(held), rel=1e-4)


@pytest.mark.parametrize("lengths", ["packed", "dynamic", "padded"])
def test_the_rows_are_those_of_a_tokenizer_and_packing_by_hand(corpus, lengths):
    in_order, held = LanguageModel().datasets(compose(*words(corpus, f"task.lengths={lengths}"), "data.shuffle=false"))
    assert [ids.tolist() for ids, _ in in_order] == rows_by_hand(corpus, lengths)
    assert [ids.tolist() for ids, _ in held.samples] == rows_by_hand(corpus, lengths, "held")[:40]
    drawn, _ = LanguageModel().datasets(compose(*words(corpus, f"task.lengths={lengths}"), "data.shuffle=true"))
    rows = [ids.tolist() for ids, _ in drawn]
    if lengths != "packed":
        assert sorted(rows) == sorted(rows_by_hand(corpus, lengths)) and rows != rows_by_hand(corpus, lengths)
        return
    assert {len(row) for row in rows[:-1]} == {32}
    documents, whole = (
        "".join(chr(token) for row in packed for token in row).split(chr(1))  # the token 1 ends a document
        for packed in (rows, rows_by_hand(corpus, lengths))
    )
    assert documents != whole and sorted(documents) == sorted(whole)


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


def test_a_model_of_half_precision_learns_and_is_exported_as_float32(tmp_path, corpus):
    from safetensors.torch import load_file

    tiny_lm.save_model(tmp_path / "half", torch.bfloat16)
    given = (*words(corpus), f"task.model={tmp_path / 'half'}", "launch.mode=inline", "run.console=none")
    given = (*given, f"run.dir={tmp_path / 'runs'}", "optimizer.lr=1e-6", "trainer.max_steps=3")
    done = fit("lm", compose(*given), show=False)
    assert done.status == "completed", done.error
    out = export(done, tmp_path / "out")
    exported, begun = load_file(out / "model.safetensors"), load_file(tmp_path / "half/model.safetensors")
    assert {value.dtype for value in exported.values()} == {torch.float32}
    assert json.loads((out / "config.json").read_text())["dtype"] == "float32"
    assert furthest(exported, weights(done.path)) == 0.0
    assert 0 < furthest(exported, begun) < 1e-5, "steps that half precision would round away"


WRITTEN = ("checkpoint.background=false",)  # a kill may come before what is written in the background is whole
SIDES = {
    "one rank": (),
    "one worker": DILOCO,
    "ddp": TWO,
    "fsdp": (*TWO, "distributed.strategy=fsdp"),
    "two workers": (*TWO, *DILOCO),
}


@pytest.mark.parametrize(
    "more",
    [pytest.param(more, id=name, marks=[pytest.mark.long] * (name != "one rank")) for name, more in SIDES.items()],
)
def test_the_command_line_killed_three_times_exports_what_a_whole_run_does(tmp_path, corpus, more):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    given = (f"task.model={corpus / 'tiny'}", f"task.data={corpus / 'parts'}", *BASE, *WRITTEN, *more)
    whole = run_cli(tmp_path, "train", "lm", *given, "run.dir=whole")
    assert whole.returncode == 0, whole.stderr
    (folder,) = (path for path in (tmp_path / "whole").iterdir() if path.is_dir())
    for session, at in enumerate((*(ON_TWO if TWO[0] in more else CUTS), 0)):
        begin = ("resume", only_run(tmp_path)) if session else ("train", f"{TESTS / 'lm_runs.py'}:Killed", *given)
        done = run_cli(tmp_path, *begin, env={"TINY_KILL_AT": str(at)})
        assert (done.returncode == 0) == (at == 0), done.stdout + done.stderr
    for run_folder, out in ((folder, "one"), (only_run(tmp_path), "other")):
        done = run_cli(tmp_path, "lm", "export", run_folder, out)
        assert done.returncode == 0, done.stderr
    assert steps_and_losses(read_events(only_run(tmp_path) / "events.jsonl")) == steps_and_losses(
        read_events(folder / "events.jsonl")
    )
    one, other = (AutoModelForCausalLM.from_pretrained(tmp_path / out) for out in ("one", "other"))
    assert furthest(one.state_dict(), other.state_dict()) == 0.0
    assert furthest(one.state_dict(), AutoModelForCausalLM.from_pretrained(corpus / "tiny").state_dict()) > 1e-3
    ids = AutoTokenizer.from_pretrained(tmp_path / "other")("one two three", return_tensors="pt")["input_ids"]
    assert torch.equal(one(ids).logits, other(ids).logits)


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
