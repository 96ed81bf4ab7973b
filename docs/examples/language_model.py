"""Fine-tune a language model on texts with packed rows, and let it continue a prompt."""

import random
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import spectrakit as sk

NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


def write_stand_in():
    "A tiny model with its tokenizer, and texts that count: in their place name a folder and files of your own."
    known = {word: n for n, word in enumerate(["<unk>", "</s>", *NUMBERS])}
    tokens = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokens, eos_token="</s>", unk_token="<unk>").save_pretrained("model")
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(known), eos_token_id=1, **shape)).save_pretrained("model")
    draw = random.Random(0)
    lines = [" ".join(NUMBERS[(k + n) % 12] for n in range(draw.randrange(4, 30))) for k in range(400)]
    Path("texts.txt").write_text("\n\n".join(lines))


write_stand_in()
words = ["lm=default", "task.model=model", "task.data=texts.txt", "task.seq_len=64", "task.new_tokens=8"]
words += ["data.micro_batch_size=4", "accumulate_grad_batches=2", "optimizer.lr=0.005", "trainer.max_steps=40"]
run = sk.fit("lm", *words, "trainer.log_every_n_steps=5", *sys.argv[1:])
sk.predict("lm", run, out="samples.csv")
print(run.status, run.metrics)
print(Path("samples.csv").read_text().splitlines()[1])
