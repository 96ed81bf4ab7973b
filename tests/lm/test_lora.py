"""LoRA from the first step to what is handed on: adapters alone learn, are exchanged and go on to the bit, on one rank
and two, and are exported merged and alone.
"""

import warnings

import pytest
import torch

from helpers import only_run, run_cli
from in_process import furthest, trainer_in, weights
from lm_runs import BASE, DILOCO, TWO, Cut, run, save_corpus, steps_and_losses, words
from spectrakit.api.run import open_run
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


def learned(corpus, found: dict) -> int:
    "How many numbers differ from where training begins, where all that is no adapter has stayed as it was."
    from safetensors.torch import load_file

    begun = load_file(corpus / "tiny/model.safetensors")
    adapters = {name: value for name, value in found.items() if ".lora_" in name}
    plain = {name.removeprefix("base_model.model.").replace(".base_layer", ""): v for name, v in found.items()}
    assert all(torch.equal(value, plain[name]) for name, value in begun.items())
    assert len(adapters) + len(begun) == len(found)
    assert all(value.any() for name, value in adapters.items() if ".lora_B" in name)  # they begin as zeros
    return sum(value.numel() for value in adapters.values())


def test_adapters_alone_learn_and_go_on_to_the_bit_after_cuts(tmp_path, corpus):
    train, given = trainer_in(tmp_path), (*words(corpus, *LORA), "optimizer.name=adamw", "data.shuffle=true")
    whole = train(LanguageModel(), *given, "task.lora_dropout=0.1", name="whole")
    assert whole.status == "completed", whole.reason
    assert learned(corpus, weights(whole.folder)) == ADAPTERS
    losses = steps_and_losses(whole.events)
    assert losses[12] < losses[1]
    seen: dict[int, float] = {}
    for session, at in enumerate((*CUTS, None)):
        cut = train(Cut(at), *given, "task.lora_dropout=0.1", name="cut", resume=session > 0)
        seen |= steps_and_losses(cut.events)
    assert cut.status == "completed", cut.reason
    assert furthest(weights(whole.folder), weights(cut.folder)) == 0.0 and seen == losses


def uncut(corpus, tmp_path, *more: str) -> list:
    "The events of a run on two ranks in the folder `whole`, whose adapters alone have learned."
    outcome, events = run(tmp_path / "whole", Cut(), *words(corpus, *LORA), *TWO, *more)
    assert outcome.status == "completed", outcome
    assert learned(corpus, weights(tmp_path / "whole")) == ADAPTERS
    return events


def check_cut(corpus, tmp_path, *more: str) -> None:
    "A run that was cut in the middle is the same to the bit."
    given = (*words(corpus, *LORA), *TWO, *more)
    outcome, _ = run(tmp_path / "cut", Cut(7), *given)
    assert outcome.status == "failed", outcome
    outcome, _ = run(tmp_path / "cut", Cut(), *given, kind="resume")
    assert outcome.status == "completed", outcome
    assert furthest(weights(tmp_path / "whole"), weights(tmp_path / "cut")) == 0.0


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
    with pytest.raises(RequestError, match="holds something that is no exported model"):
        export(folder, corpus)
