"""An exported folder is the trained model: adapters on tied weights, ends of texts, generation configs, dtypes."""

import json
import warnings

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

import tiny_lm
from lm_runs import BASE
from spectrakit.api.actions import fit
from spectrakit.config.compose import compose
from spectrakit.lm import exporting
from spectrakit.lm.exporting import export
from spectrakit.lm.language_model import LanguageModel
from spectrakit.lm.pretrained import load_model
from spectrakit.system.errors import RequestError

pytestmark = pytest.mark.slow  # every test here trains a model of transformers


def trained(folder, *more: str, task=None, steps: int = 8):
    "A run of the model `folder`/tiny, which is made where it is missing."
    if not (folder / "tiny").exists():
        tiny_lm.save_model(folder / "tiny", tied=True)
    tiny_lm.save_lines(folder / "texts.jsonl", 120)
    given = [word for word in BASE if not word.startswith(("trainer.max_steps", "optimizer.lr"))]
    given += [f"task.model={folder / 'tiny'}", f"task.data={folder / 'texts.jsonl'}", f"trainer.max_steps={steps}"]
    given += ["optimizer.lr=0.03", f"run.dir={folder / 'runs'}", "launch.mode=inline", "run.console=none", *more]
    run = fit(task or LanguageModel(), compose(*given), show=False)
    assert run.status == "completed", run.error
    return run


def logits(model, ids):
    with torch.no_grad():
        return model.eval()(input_ids=ids).logits.float()


IDS = torch.randint(0, len(tiny_lm.VOCABULARY), (3, 12), generator=torch.Generator().manual_seed(3))


def assert_same(run, out, task=None, atol: float = 1e-4):
    "The exported folder, loaded by transformers, answers as the run's model does, and not as the base."
    mine, exported = logits(run.load_model(task), IDS), logits(AutoModelForCausalLM.from_pretrained(out), IDS)
    torch.testing.assert_close(exported, mine, rtol=0, atol=atol)
    base = logits(AutoModelForCausalLM.from_pretrained(run.config.task["model"]), IDS)
    assert (mine - base).abs().max() > 20 * atol


# adapters on weights that the embedding and the output share


@pytest.mark.parametrize(
    ("targets", "tied"),
    [
        ("all-linear", True),
        ("lm_head", True),
        ("embed_tokens", True),
        ("[embed_tokens,lm_head,q_proj]", True),
        ("[embed_tokens,lm_head,q_proj]", False),
        pytest.param("all-linear", False, marks=pytest.mark.long),
        pytest.param("lm_head", False, marks=pytest.mark.long),
        pytest.param("embed_tokens", False, marks=pytest.mark.long),
    ],
)
def test_adapters_on_either_end_of_tied_weights_are_merged_right(tmp_path, targets, tied):
    tiny_lm.save_model(tmp_path / "tiny", tied=tied)
    run = trained(tmp_path, "task.lora_rank=4", f"task.lora_targets={targets}")
    out = export(run, tmp_path / "out")
    assert_same(run, out)
    kept_tied = json.loads((out / "config.json").read_text())["tie_word_embeddings"]
    assert kept_tied == (tied and targets == "all-linear")
    alone = export(run, tmp_path / "alone", adapters=True)  # compared, too
    assert (alone / "adapter_model.safetensors").exists()


def test_a_model_of_another_family_is_merged_right(tmp_path):
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
    GPT2LMHeadModel(GPT2Config(vocab_size=len(tiny_lm.VOCABULARY), **shape)).save_pretrained(tmp_path / "tiny")
    tiny_lm.save_tokenizer(tmp_path / "tiny")
    run = trained(tmp_path, "task.lora_rank=4", "task.lora_targets=[wte,lm_head,c_attn]", "task.seq_len=16")
    assert_same(run, export(run, tmp_path / "out"))


class Copied(LanguageModel):
    "One end of the tied weights learns as a copy, beside adapters elsewhere."

    end = "lm_head"

    def model(self, cfg):
        from peft import LoraConfig, get_peft_model

        model = load_model(str(self._options(cfg)["model"]))
        config = LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=[self.end])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # peft warns of tied weights
            return get_peft_model(model, config)

    def frozen_from(self, cfg):
        return None


class CopiedEmbedding(Copied):
    end = "embed_tokens"


@pytest.mark.parametrize("task", [Copied, CopiedEmbedding])
def test_a_copy_of_one_end_that_has_learned_is_told_from_the_other(tmp_path, task):
    run = trained(tmp_path, task=task())
    assert_same(run, export(run, tmp_path / "out", task=task()), task())


def test_an_export_that_is_another_model_is_refused_and_an_earlier_one_stays(tmp_path, monkeypatch):
    run = trained(tmp_path, "task.lora_rank=4")
    out = export(run, tmp_path / "out")
    before = load_file(out / "model.safetensors")

    def forgotten(model):
        return model.unload()

    monkeypatch.setattr(exporting, "without_lora", forgotten)
    with pytest.raises(RequestError, match="is not the trained one"):
        export(run, tmp_path / "out")
    kept = load_file(out / "model.safetensors")
    assert all(torch.equal(kept[name], value) for name, value in before.items())
    with pytest.raises(RequestError, match="is not the trained one"):
        export(run, tmp_path / "new")
    assert {path.name for path in tmp_path.iterdir()} == {"tiny", "texts.jsonl", "runs", "out"}


# the end of a text


@pytest.mark.parametrize(
    ("own", "named", "config", "generation"),
    [
        pytest.param(1, "ten", 11, 11, marks=pytest.mark.long),
        pytest.param(1, None, 1, 1, marks=pytest.mark.long),
        (7, None, 1, 1),  # of a base that does not agree with its tokenizer
        (None, "bo", tiny_lm.VOCABULARY.index("bo"), tiny_lm.VOCABULARY.index("bo")),
        ([5, 1], "ten", 11, [11, 5, 1]),  # a base with several ends keeps them
        ([5, 1], None, 1, [1, 5]),
    ],
)
def test_the_export_names_the_end_of_a_text_everywhere(tmp_path, own, named, config, generation):
    tiny_lm.save_model(tmp_path / "tiny")
    for name in ("config.json", "generation_config.json"):
        file = tmp_path / "tiny" / name
        file.write_text(json.dumps({**json.loads(file.read_text()), "eos_token_id": own}))
    run = trained(tmp_path, *([f"task.eos_token={named}"] if named else []), steps=2)
    out = export(run, tmp_path / "out")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert tokenizer.eos_token == (named or "</s>") and tokenizer("one ten bo")["input_ids"] == [2, 11, 15]
    assert model.config.eos_token_id == config and model.generation_config.eos_token_id == generation
    adapted = trained(tmp_path, "task.lora_rank=2", f"task.eos_token={named or 'nine'}", steps=2)
    adapters = export(adapted, tmp_path / "alone", adapters=True)
    assert AutoTokenizer.from_pretrained(adapters).eos_token == (named or "nine")


# generation configs that say something against themselves


@pytest.mark.parametrize(
    ("settings", "kept", "said"),
    [
        ({"temperature": 0.6, "top_p": 0.9}, {}, "temperature=0.6, top_p=0.9"),
        pytest.param({"do_sample": False, "top_k": 5, "min_p": 0.1}, {}, "top_k=5, min_p=0.1", marks=pytest.mark.long),
        ({"length_penalty": 2.0, "early_stopping": True}, {}, "early_stopping=True, length_penalty=2.0"),
        pytest.param(
            {"do_sample": False, "typical_p": 0.5, "length_penalty": 0.5},
            {},
            "typical_p=0.5, length_penalty=0.5",
            marks=pytest.mark.long,
        ),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9}, {"temperature": 0.6, "top_p": 0.9}, ""),
        ({"repetition_penalty": 1.1}, {"repetition_penalty": 1.1}, ""),
    ],
)
def test_a_generation_config_that_cannot_be_saved_is_mended_and_told(tmp_path, capsys, settings, kept, said):
    tiny_lm.save_model(tmp_path / "tiny")
    file = tmp_path / "tiny" / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))
    run = trained(tmp_path, steps=2)
    capsys.readouterr()
    out = export(run, tmp_path / "out")
    told = capsys.readouterr().err
    assert (said in told) if said else ("generation config" not in told)
    written = json.loads((out / "generation_config.json").read_text())
    assert written["eos_token_id"] == 1
    assert all(written[name] == value for name, value in kept.items())
    assert all(name in kept or written.get(name) != value for name, value in settings.items() if name != "do_sample")
    AutoModelForCausalLM.from_pretrained(out).generation_config.validate(strict=True)


def test_settings_for_generation_in_the_config_of_an_older_model_move(tmp_path):
    tiny_lm.save_model(tmp_path / "tiny")
    file = tmp_path / "tiny" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "repetition_penalty": 1.3}))
    (tmp_path / "tiny" / "generation_config.json").unlink()
    out = export(trained(tmp_path, steps=2), tmp_path / "out")
    assert AutoModelForCausalLM.from_pretrained(out).generation_config.repetition_penalty == 1.3


# number formats


def formats(weights) -> set:
    return {value.dtype for value in weights.values()}


@pytest.mark.parametrize(
    ("dtype", "tied"),
    [
        (torch.bfloat16, True),
        (torch.float16, False),
        pytest.param(torch.bfloat16, False, marks=pytest.mark.long),
        pytest.param(torch.float16, True, marks=pytest.mark.long),
    ],
)
def test_frozen_weights_and_the_export_have_the_format_of_the_base(tmp_path, dtype, tied):
    tiny_lm.save_model(tmp_path / "tiny", dtype, tied=tied)
    run = trained(tmp_path, "task.lora_rank=4", "task.dtype=auto", "task.lora_targets=[q_proj,lm_head]")
    model = run.load_model()
    assert {q.dtype for q in model.parameters() if not q.requires_grad} == {dtype}
    assert {q.dtype for q in model.parameters() if q.requires_grad} == {torch.float32}
    losses = [event["loss"] for event in run.events if event["type"] == "step"]
    assert losses[-1] < losses[0]
    out = export(run, tmp_path / "out")
    assert formats(load_file(out / "model.safetensors")) == {dtype}
    assert json.loads((out / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")
    assert_same(run, out, atol=0.1 if dtype == torch.bfloat16 else 0.02)
    wide = export(run, tmp_path / "wide", dtype="float32")
    assert formats(load_file(wide / "model.safetensors")) == {torch.float32}
    export(run, tmp_path / "alone", adapters=True)


@pytest.mark.parametrize("more", [("task.dtype=auto",), ()])
def test_all_weights_learn_in_float32_and_are_exported_as_asked_for(tmp_path, more):
    tiny_lm.save_model(tmp_path / "tiny", torch.bfloat16)
    run = trained(tmp_path, *more)
    assert formats(run.load_model().state_dict()) == {torch.float32}
    out = export(run, tmp_path / "out", dtype=None if more else "auto")
    assert formats(load_file(out / "model.safetensors")) == {torch.bfloat16}
    half = export(run, tmp_path / "half", dtype="float16")
    assert formats(load_file(half / "model.safetensors")) == {torch.float16}


def test_a_format_that_there_is_not_is_refused(tmp_path):
    run = trained(tmp_path, "task.lora_rank=2", steps=2)
    with pytest.raises(RequestError, match=r"dtype='bfloat' is unknown.*Did you mean 'bfloat16'"):
        export(run, tmp_path / "out", dtype="bfloat")
    with pytest.raises(RequestError, match="Remove dtype"):
        export(run, tmp_path / "out", dtype="float16", adapters=True)
    with pytest.raises(RequestError, match=r"task.dtype=half is not possible: there are float32, auto"):
        LanguageModel(dtype="half")
