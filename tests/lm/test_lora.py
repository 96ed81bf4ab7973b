"""LoRA from the first step to what is handed on: adapters alone learn, are exchanged and go on to the bit, on one rank
and two, and are exported merged and alone.
"""

import shutil
import warnings

import pytest
import torch
from safetensors.torch import load_file

import tiny_lm
from helpers import only_run, run_cli
from in_process import furthest, trainer_in, weights
from lm_runs import BASE, DILOCO, TWO, Cut, run, save_corpus, steps_and_losses, words
from spectrakit.api.run import open_run
from spectrakit.checkpoint.store import find_checkpoint, read_manifest
from spectrakit.lm.exporting import export
from spectrakit.lm.language_model import LanguageModel
from spectrakit.system.errors import RequestError

pytestmark = pytest.mark.slow  # every test here trains a model of transformers

LORA = ("task.lora_rank=4", "task.new_tokens=4", "task.lengths=dynamic")
CUTS = (7, 5)
ADAPTERS = 14_592  # two layers: 4 x 4 x (96 + 96) of attention, 3 x 4 x (96 + 256) behind it


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return save_corpus(tmp_path_factory.mktemp("lm"))


def learned(found: dict) -> int:
    "How many numbers a checkpoint holds, which are adapters alone."
    assert all(".lora_" in name for name in found)
    assert all(value.any() for name, value in found.items() if ".lora_B" in name)  # they begin as zeros
    return sum(value.numel() for value in found.values())


def test_adapters_alone_learn_and_go_on_to_the_bit_after_cuts(tmp_path, corpus):
    train, given = trainer_in(tmp_path), (*words(corpus, *LORA), "optimizer.name=adamw", "data.shuffle=true")
    whole = train(LanguageModel(), *given, "task.lora_dropout=0.1", name="whole")
    assert whole.status == "completed", whole.reason
    assert learned(weights(whole.folder)) == ADAPTERS
    losses = steps_and_losses(whole.events)
    assert losses[12] < losses[1]
    kept = find_checkpoint(whole.folder / "checkpoints")[0]
    entry, begun = read_manifest(kept)["base"], load_file(corpus / "tiny/model.safetensors")
    assert entry["source"] == str(corpus / "tiny") and entry["bytes"] == sum(v.nbytes for v in begun.values())
    assert (kept / "model.safetensors").stat().st_size < 4 * ADAPTERS + 8000 < entry["bytes"] / 10
    seen: dict[int, float] = {}
    for session, at in enumerate((*CUTS, None)):
        cut = train(Cut(at), *given, "task.lora_dropout=0.1", name="cut", resume=session > 0)
        seen |= steps_and_losses(cut.events)
    assert cut.status == "completed", cut.reason
    assert furthest(weights(whole.folder), weights(cut.folder)) == 0.0 and seen == losses


@pytest.mark.parametrize(
    "more",
    [
        ("training.ema_decay=0.8", "training.average=last:2", "task.valid=none"),
        pytest.param(("training.gradient_checkpointing=true", "checkpoint.mirror=mirror"), marks=pytest.mark.long),
    ],
    ids=["averages", "recomputed"],
)
def test_averages_and_recomputed_layers_go_on_to_the_bit_too(tmp_path, corpus, monkeypatch, more):
    monkeypatch.chdir(tmp_path)
    train, given = trainer_in(tmp_path), (*words(corpus, *LORA), "optimizer.name=adamw", "data.shuffle=true", *more)
    whole = train(LanguageModel(), *given, name="whole")
    assert whole.status == "completed", whole.reason
    assert train(Cut(7), *given, name="cut").status == "failed"
    cut = train(Cut(), *given, name="cut", resume=True)
    assert cut.status == "completed", cut.reason
    for file in ("model.safetensors", "ema.safetensors", "averaged.safetensors"):
        one, other = (find_checkpoint(run.folder / "checkpoints", "BEST")[0] / file for run in (whole, cut))
        assert one.exists() == other.exists() == (file[0] == "m" or "task.valid=none" in more)
        if one.exists():
            assert learned(load_file(one)) == ADAPTERS and furthest(load_file(one), load_file(other)) == 0.0


class Whole(Cut):
    "Saves everything, as version 0.2 did."

    def frozen_from(self, cfg):
        return None


@pytest.mark.long
def test_a_checkpoint_that_holds_the_base_too_goes_on_without_it(tmp_path, corpus):
    train, given = trainer_in(tmp_path), (*words(corpus, *LORA), "optimizer.name=adamw", "data.shuffle=true")
    whole = train(LanguageModel(), *given, name="whole")
    assert train(Whole(9), *given, name="cut").status == "failed"
    assert len(weights(tmp_path / "cut")) > len(weights(whole.folder)) + 20
    cut = train(Cut(), *given, name="cut", resume=True)
    assert cut.status == "completed", cut.reason
    assert furthest(weights(whole.folder), weights(cut.folder)) == 0.0
    tiny_lm.save_model(tmp_path / "other", seed=1)
    swapped = [word.replace(str(corpus / "tiny"), str(tmp_path / "other")) for word in given]
    assert train(Whole(9), *given, name="moved").status == "failed"
    other = train(Cut(), *swapped, name="moved", resume=True)  # what the checkpoint holds counts, and is held again
    assert other.status == "completed", other.reason
    kept = weights(other.folder)
    assert furthest(weights(whole.folder), {name: v for name, v in kept.items() if ".lora_" in name}) == 0.0
    assert any("has other frozen weights" in note for e in other.events for note in e.get("notes", []))
    assert len(kept) > len(weights(whole.folder)) + 20


def test_another_base_is_refused_and_a_moved_one_is_not(tmp_path, corpus):
    shutil.copytree(corpus / "tiny", tmp_path / "base")
    given = (*BASE, "task.model=base", f"task.data={corpus / 'texts.jsonl'}", *LORA)
    done = run_cli(tmp_path, "train", "lm", *given)
    assert done.returncode == 0 and "omit the frozen weights of base" in done.stdout, done.stderr
    folder, more = only_run(tmp_path), ("trainer.max_steps=14", "resume.allow=[trainer.max_steps]")
    assert run_cli(tmp_path, "lm", "export", folder, "merged").returncode == 0
    (tmp_path / "base").rename(tmp_path / "elsewhere")
    for call in (("resume", folder, *more), ("predict", "lm", folder), ("lm", "export", folder, "out")):
        done = run_cli(tmp_path, *call)
        assert done.returncode and "Traceback" not in done.stderr
        assert "'base'" in done.stderr, (call, done.stderr)
    done = run_cli(tmp_path, "lm", "export", folder, "again", "--base", "elsewhere")
    assert done.returncode == 0, done.stderr
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("merged", "again"))
    assert furthest(one, two) == 0.0
    tiny_lm.save_model(tmp_path / "base", seed=1)
    for call in (("resume", folder, *more), ("predict", "lm", folder), ("lm", "export", folder, "out")):
        done = run_cli(tmp_path, *call)
        assert done.returncode and "'base' has changed: SHA-256" in done.stderr, done.stderr
        assert "Traceback" not in done.stderr and not (tmp_path / "out").exists()
    moved = ("task.model=elsewhere", "trainer.max_steps=14", "resume.allow=[trainer.max_steps,task.model]")
    done = run_cli(tmp_path, "resume", folder, *moved)
    assert done.returncode == 0, done.stderr


def uncut(corpus, tmp_path, *more: str) -> list:
    "The events of a run on two ranks in the folder `whole`, whose adapters alone have learned."
    outcome, events = run(tmp_path / "whole", Cut(), *words(corpus, *LORA), *TWO, *more)
    assert outcome.status == "completed", outcome
    assert learned(weights(tmp_path / "whole")) == ADAPTERS
    return events


def check_cut(corpus, tmp_path, *more: str) -> None:
    "A run that was cut in the middle is the same to the bit."
    given = (*words(corpus, *LORA), *TWO, *more)
    outcome, _ = run(tmp_path / "cut", Cut(7), *given)
    assert outcome.status == "failed", outcome
    outcome, _ = run(tmp_path / "cut", Cut(), *given, kind="resume")
    assert outcome.status == "completed", outcome
    assert furthest(weights(tmp_path / "whole"), weights(tmp_path / "cut")) == 0.0


@pytest.mark.long
def test_with_diloco_two_workers_send_their_adapters_alone(tmp_path, corpus):
    rounds = [event for event in uncut(corpus, tmp_path, *DILOCO) if event["type"] == "round"]
    assert [event["bytes"] for event in rounds] == [4 * ADAPTERS] * 3
    check_cut(corpus, tmp_path, *DILOCO)


@pytest.mark.long
def test_with_fsdp_they_go_on_to_the_bit(tmp_path, corpus):
    uncut(corpus, tmp_path, "distributed.strategy=fsdp")
    check_cut(corpus, tmp_path, "distributed.strategy=fsdp")


def test_with_fsdp_two_ranks_share_the_model_and_learn_what_one_does(tmp_path, corpus):
    uncut(corpus, tmp_path, "distributed.strategy=fsdp")
    given = (*words(corpus, *LORA), "optimizer.name=adamw", "data.shuffle=true", "optimizer.weight_decay=0.01")
    one = trainer_in(tmp_path)(LanguageModel(), *given, name="one")
    assert furthest(weights(tmp_path / "whole"), weights(one.folder)) < 2e-5


def test_the_command_line_trains_exports_and_both_forms_load(tmp_path, corpus):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    given = (*BASE, f"task.model={corpus / 'tiny'}", f"task.data={corpus / 'texts.jsonl'}", *LORA)
    done = run_cli(tmp_path, "train", "lm", *given)
    assert done.returncode == 0, done.stderr
    folder = only_run(tmp_path)
    for words_, name in ((), "merged"), (("--adapters",), "adapters"):
        done = run_cli(tmp_path, "lm", "export", folder, name, *words_)
        assert done.returncode == 0 and done.stdout.strip().endswith(str(tmp_path / name)), done.stderr
    ids = torch.tensor([AutoTokenizer.from_pretrained(tmp_path / "merged")("one two three four")["input_ids"]])
    trained = open_run(folder).load_model(LanguageModel()).eval()
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    begun = AutoModelForCausalLM.from_pretrained(corpus / "tiny")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # between peft and transformers
        alone = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(corpus / "tiny"), tmp_path / "adapters")
    with torch.inference_mode():
        wanted, before = trained(input_ids=ids).logits, begun(input_ids=ids).logits
        assert (wanted - before).abs().max() > 1e-2
        assert torch.equal(alone.eval()(input_ids=ids).logits, wanted)
        torch.testing.assert_close(merged.eval()(input_ids=ids).logits, wanted, rtol=0, atol=1e-5)
    assert sum(path.stat().st_size for path in (tmp_path / "adapters").glob("*.safetensors")) < 8 * ADAPTERS
    with pytest.raises(RequestError, match="has files of no exported model"):
        export(folder, corpus)
    with pytest.raises(RequestError, match="is the base model of the run"):
        export(folder, corpus / "tiny")
    assert (corpus / "tiny/model.safetensors").exists()
