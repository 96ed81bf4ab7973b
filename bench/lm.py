"""`python bench/lm.py`: the task `lm` beside `transformers.Trainer`, on the same rows, one pair after the other.

Both train the same model from the same weights with AdamW and packed rows of one length, one process, float32 on the
CPU, without evaluation, logs or checkpoints in between. What is compared is CPU time of the process, so that what else
the machine does counts little: tokens a CPU second, and microseconds a step beside the model's own work, measured with
a model so small that its work is next to nothing. Medians of `--pairs` pairs, and their ratio.

`--waits`: how long training waits for its rows with `dataloader.num_workers=0` and with 2, in pairs, where a step is a
device that computes for some milliseconds (a pause, in which a thread may tokenize).
`--sizes`: what a checkpoint of a LoRA run takes, and a save, with the frozen weights and without them.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.utils import logging

import tiny_lm
from spectrakit.checkpoint.frozen_weights import frozen_base
from spectrakit.config.compose import compose
from spectrakit.distributed.context import create_run_context
from spectrakit.lm.language_model import LanguageModel
from spectrakit.runs.events import read_events
from spectrakit.system.platforms.detect import detect
from spectrakit.train.loop import train_run
from spectrakit.train.state import Execution
from spectrakit.watchdog.time_budget import Budget, TimeLimit

BATCH, ACCUMULATION, WARM = 4, 2, 5


class Timed(LanguageModel):
    "Notes the CPU time at each step's first loss."

    def __init__(self, **options):
        super().__init__(**options)
        self.at: list[float] = []

    def loss(self, model, batch, moment=None):
        if moment is not None and len(self.at) <= moment.step:
            self.at.append(time.process_time())
        return super().loss(model, batch)


class Note(TrainerCallback):
    "The same for transformers.Trainer."

    def __init__(self):
        self.at: list[float] = []

    def on_step_begin(self, *args, **kwargs):
        self.at.append(time.process_time())


def step_s(at: list[float]) -> float:
    "CPU seconds of a step, the mean behind the first ones."
    return (at[-1] - at[WARM]) / (len(at) - 1 - WARM)


def ours(folder: Path, steps: int, seq_len: int) -> float:
    "CPU seconds of a step of the kit's."
    task = Timed(model=str(folder / "model"), data=str(folder / "texts.jsonl"), seq_len=seq_len, valid="none")
    config = compose(
        "trainer.accelerator=cpu",
        "launch.mode=inline",
        f"trainer.max_steps={steps}",
        f"data.micro_batch_size={BATCH}",
        f"training.gradient_accumulation_steps={ACCUMULATION}",
        "optimizer.lr=1e-4",
        "scheduler.name=constant",
        f"trainer.log_every_n_steps={steps}",
        "checkpoint.enabled=false",
        "launch.threads=1",
        "dataloader.num_workers=0",
    )
    with tempfile.TemporaryDirectory() as out:
        context = create_run_context(config, detect({"PATH": ""}, shell=""))
        status, reason = train_run(task, config, Execution(context, Path(out), Budget(TimeLimit(None, 0.0, "none"))))
    assert status == "completed", reason
    return step_s(task.at)


class Rows(torch.utils.data.Dataset):
    def __init__(self, rows: list):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def theirs(folder: Path, steps: int, seq_len: int) -> float:
    "CPU seconds of a step of transformers.Trainer, with rows that were packed before."
    task = LanguageModel(model=str(folder / "model"), data=str(folder / "texts.jsonl"), seq_len=seq_len, valid="none")
    rows = [ids for ids, _ in task.datasets(compose())[0] if len(ids) == seq_len]
    model, note = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32), Note()
    with tempfile.TemporaryDirectory() as out:
        arguments = TrainingArguments(
            output_dir=out,
            max_steps=steps,
            per_device_train_batch_size=BATCH,
            gradient_accumulation_steps=ACCUMULATION,
            learning_rate=1e-4,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        Trainer(model=model, args=arguments, train_dataset=Rows(rows), callbacks=[note]).train()
    return step_s(note.at)


def measure(name: str, hidden: int, seq_len: int, steps: int, pairs: int) -> None:
    "Print one row."
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        config = LlamaConfig(
            vocab_size=len(tiny_lm.VOCABULARY),
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=512,
            eos_token_id=1,
        )
        LlamaForCausalLM(config).save_pretrained(folder / "model")
        tiny_lm.save_tokenizer(folder / "model")
        tiny_lm.save_lines(folder / "texts.jsonl", 3000)
        both = [(ours(folder, steps, seq_len), theirs(folder, steps, seq_len)) for _ in range(pairs)]
    mine, other = (statistics.median(times) for times in zip(*both, strict=True))
    tokens = BATCH * ACCUMULATION * seq_len
    ratio = statistics.median(b / a for a, b in both)
    print(
        f"{name}: {tokens / mine:,.0f} tokens a CPU second, transformers.Trainer {tokens / other:,.0f}; {ratio:.2f} x; "
        f"a step {1e6 * mine:,.0f} µs against {1e6 * other:,.0f} µs: {1e6 * (mine - other):+,.0f} µs"
    )


def save_bpe(folder: Path, texts: list[str]) -> None:
    "A tokenizer as large models have it, byte pairs, of these texts."
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    made = ByteLevelBPETokenizer()
    made.train_from_iterator(texts, vocab_size=2000, special_tokens=["</s>"], show_progress=False)
    PreTrainedTokenizerFast(tokenizer_object=made._tokenizer, eos_token="</s>").save_pretrained(folder)


def waited_ms(folder: Path, threads: int, steps: int, pause_s: float) -> float:
    "Milliseconds that a step waits for its rows."
    config = compose(f"dataloader.num_workers={threads}", "data.shuffle_buffer=200", "data.samples_per_epoch=1000")
    task = LanguageModel(model=str(folder / "model"), data=str(folder / "texts.jsonl"), seq_len=1024, valid="none")
    reading, waited = task.datasets(config)[0].reading(0), []
    for _ in range(steps):
        began = time.perf_counter()
        for _ in range(BATCH * ACCUMULATION):
            next(reading)
        waited.append(time.perf_counter() - began)
        time.sleep(pause_s)
    return 1000 * statistics.mean(waited[WARM:])


def measure_waits(steps: int, pairs: int) -> None:
    "Print how long training waits for rows, tokenized in line and beside it."
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        short = tiny_lm.texts(20 * 4000)
        texts = [" ".join(short[n : n + 20]) for n in range(0, len(short), 20)]
        save_bpe(folder / "model", texts[:500])
        (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        for pause_s in (0.02, 0.1):
            both = [tuple(waited_ms(folder, n, steps, pause_s) for n in (0, 2)) for _ in range(pairs)]
            line, beside = (statistics.median(times) for times in zip(*both, strict=True))
            ratio = statistics.median(a / b for a, b in both)
            print(
                f"rows for a step of {BATCH * ACCUMULATION} x 1024 tokens and {1000 * pause_s:.0f} ms: waited "
                f"{line:.2f} ms in line, {beside:.2f} ms with a thread; {ratio:.1f} times less, {pairs} pairs"
            )


class Everything(LanguageModel):
    "Its checkpoints hold the frozen weights, too."

    def frozen_from(self, cfg):
        return None


def saved(task: LanguageModel, folder: Path) -> tuple[int, float]:
    "Bytes of the checkpoint of a LoRA run, and the seconds that writing it took."
    given = (f"task.model={folder / 'model'}", f"task.data={folder / 'texts.jsonl'}", "task.seq_len=16")
    short = ("task.valid=none", "task.lora_rank=8", "trainer.max_steps=1", "data.shuffle=false")
    config = compose("trainer.accelerator=cpu", "launch.mode=inline", "launch.threads=1", *given, *short)
    with tempfile.TemporaryDirectory() as out:
        context = create_run_context(config, detect({"PATH": ""}, shell=""))
        status, reason = train_run(task, config, Execution(context, Path(out), Budget(TimeLimit(None, 0.0, "none"))))
        assert status == "completed", reason
        event = next(event for event in read_events(Path(out) / "events.jsonl") if event["type"] == "checkpoint")
    return event["bytes"], event["seconds"]


def measure_sizes(pairs: int) -> None:
    "Print the size of a checkpoint with the frozen weights and without."
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        shape = {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 8, "num_attention_heads": 8}
        model = LlamaForCausalLM(LlamaConfig(vocab_size=32_000, eos_token_id=1, **shape))
        model.save_pretrained(folder / "model")
        tiny_lm.save_tokenizer(folder / "model")
        tiny_lm.save_lines(folder / "texts.jsonl", 300)
        found = [(saved(Everything(), folder), saved(LanguageModel(), folder)) for _ in range(pairs)]
        (large, _), (small, _) = found[0]
        began = time.perf_counter()
        base = frozen_base(model.requires_grad_(False), "model")
        assert base is not None, "nothing of it learns"
        pace = base.bytes / 2**30 / (time.perf_counter() - began)
        with_base, without = (statistics.median(pair[n][1] for pair in found) for n in (0, 1))
        print(
            f"a checkpoint of {model.num_parameters() / 1e6:.0f} million parameters with adapters of rank 8: "
            f"{large / 2**20:.1f} MiB with the frozen weights, {small / 2**20:.1f} MiB without, {large / small:.0f} "
            f"times less; written in {with_base:.2f} s and {without:.2f} s; hashed at {pace:.2f} GiB/s"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--waits", action="store_true")
    parser.add_argument("--sizes", action="store_true")
    options = parser.parse_args()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    if options.waits:
        measure_waits(options.steps, options.pairs)
    if options.sizes:
        measure_sizes(options.pairs)
    if not (options.waits or options.sizes):
        measure("hidden 256, rows of 256", 256, 256, options.steps, options.pairs)
        measure("hidden 16, rows of 16", 16, 16, 5 * options.steps, options.pairs)
