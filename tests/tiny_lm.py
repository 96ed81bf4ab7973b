"A language model of some hundred thousand parameters, a tokenizer and texts, made on the spot."

import json
import random
from pathlib import Path

import torch

NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
SYLLABLES = [a + b for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "u")]
VOCABULARY = ["<unk>", "</s>", *NUMBERS, *SYLLABLES]


def save_tokenizer(folder: Path, end: str | None = "</s>") -> None:
    "A tokenizer of whole words without a padding token."
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = Tokenizer(models.WordLevel({word: n for n, word in enumerate(VOCABULARY)}, unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokens, eos_token=end, unk_token="<unk>").save_pretrained(folder)


def save_model(
    folder: Path, dtype: torch.dtype = torch.float32, positions: int = 128, tied: bool = False, seed: int = 0
) -> None:
    "A causal model of 220,000 parameters, with its tokenizer."
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        max_position_embeddings=positions,
        eos_token_id=1,
        bos_token_id=None,
        tie_word_embeddings=tied,
        **shape,
    )
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    LlamaForCausalLM(config).to(dtype).save_pretrained(folder)
    torch.set_rng_state(state)
    save_tokenizer(folder)


def texts(count: int, seed: int = 0) -> list[str]:
    "Counting from somewhere, or syllables in their order, some words long."
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        words = draw.choice((NUMBERS, SYLLABLES))
        first, length = draw.randrange(len(words)), draw.randrange(2, 40)
        found.append(" ".join(words[(first + n) % len(words)] for n in range(length)))
    return found


def save_lines(path: Path, count: int = 300, seed: int = 0, field: str = "text") -> Path:
    path.write_text("".join(json.dumps({"id": n, field: text}) + "\n" for n, text in enumerate(texts(count, seed))))
    return path


def save_parquet(folder: Path, files: int = 3, rows: int = 100) -> Path:
    import pyarrow
    from pyarrow import parquet

    folder.mkdir()
    for n in range(files):
        table = pyarrow.table({"text": texts(rows, seed=n), "url": [f"https://example.org/{k}" for k in range(rows)]})
        parquet.write_table(table, folder / f"part-{n:03d}.parquet", row_group_size=40)
    return folder
