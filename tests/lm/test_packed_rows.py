"""Packed documents are kept apart where that is asked for, and tokens that are left out are counted."""

from itertools import pairwise

import pytest
import torch
from transformers import AutoModelForCausalLM, BloomConfig, GPT2Config, LlamaConfig, MambaConfig, MistralConfig

import tiny_lm
from spectrakit.config.compose import compose
from spectrakit.lm.language_model import LanguageModel
from spectrakit.lm.pretrained import check_separation
from spectrakit.system.errors import RequestError

SHAPE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
FAMILIES = {
    "llama": LlamaConfig(vocab_size=80, **SHAPE),
    "mistral, a window of four": MistralConfig(vocab_size=80, **SHAPE, num_key_value_heads=1, sliding_window=4),
    "gpt2": GPT2Config(vocab_size=80, n_embd=32, n_layer=2, n_head=2, n_positions=64),
}


def task_on(folder, *more: str):
    tiny_lm.save_model(folder / "tiny")
    tiny_lm.save_lines(folder / "texts.jsonl", 40)
    words = (f"task.model={folder / 'tiny'}", f"task.data={folder / 'texts.jsonl'}", "task.valid=none")
    return LanguageModel(), compose(*words, "task.seq_len=32", "data.shuffle=false", *more)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_logits_of_a_packed_document_are_those_of_it_alone(tmp_path, family, attention):
    task, cfg = task_on(tmp_path, "task.across_documents=false")
    rows = list(task.datasets(cfg)[0])[:3]
    batch = task.collate(rows)
    model = AutoModelForCausalLM.from_config(FAMILIES[family], attn_implementation=attention).eval()
    with torch.no_grad():
        packed = model(input_ids=batch["input"], position_ids=batch["positions"], use_cache=False).logits
        summed, count = torch.zeros(()), 0
        for row, (ids, _) in enumerate(rows):
            begins = [0, *[n for n, token in enumerate(ids.tolist()) if token < 0 and n], len(ids)]
            for first, last in pairwise(begins):
                alone = batch["input"][row : row + 1, first:last]
                wanted = model(input_ids=alone, use_cache=False).logits
                torch.testing.assert_close(packed[row : row + 1, first:last], wanted, rtol=0, atol=1e-5)
                summed += torch.nn.functional.cross_entropy(wanted[0, :-1], alone[0, 1:], reduction="sum")
                count += last - first - 1
        loss = task.loss(model, batch)
    assert int(loss.weight) == count and float(loss.value) == pytest.approx(float(summed), rel=1e-5)
    check_separation(model)


def test_by_default_they_attend_to_each_other_and_the_rows_hold_the_same_tokens(tmp_path):
    task, cfg = task_on(tmp_path)
    joined = [ids for ids, _ in task.datasets(cfg)[0]]
    task, cfg = task_on(tmp_path, "task.across_documents=false")
    apart = list(task.datasets(cfg)[0])
    assert all((ids >= 0).all() for ids in joined) and any((ids < 0).any() for ids, _ in apart)
    for ids, row in zip(joined, apart, strict=True):
        assert task.collate([row])["input"][0, : len(ids)].tolist() == ids.tolist()


def test_a_model_that_cannot_keep_them_apart_is_refused():
    shape = {"vocab_size": 80, "hidden_size": 32}
    for config in (BloomConfig(**shape, n_layer=2, n_head=2), MambaConfig(**shape, num_hidden_layers=1)):
        with pytest.raises(RequestError, match="task.across_documents=false is not possible with (Bloom|Mamba)"):
            check_separation(AutoModelForCausalLM.from_config(config))


@pytest.mark.parametrize(("lengths", "seq_len"), [("padded", 8), ("dynamic", 16), ("dynamic", 500), ("packed", 8)])
def test_the_tokens_that_are_left_out_are_told(tmp_path, lengths, seq_len):
    task, cfg = task_on(tmp_path, f"task.lengths={lengths}", f"task.seq_len={min(seq_len, 64)}", "task.splits=false")
    lengths_of = [len(text.split()) + 1 for text in tiny_lm.texts(40)]
    dropped = sum(max(0, n - min(seq_len, 64)) for n in lengths_of)
    told = task.datasets(cfg)[0].described
    if lengths == "packed":
        assert "drops" not in told
    else:
        assert f"task.splits=false drops {dropped} of {sum(lengths_of)} tokens" in told
