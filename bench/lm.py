"""`python bench/lm.py`: the task `lm` beside `transformers.Trainer`, on the same rows, one pair after the other.

Both train the same model from the same weights with AdamW and packed rows of one length, one process, float32 on the
CPU, without evaluation, logs or checkpoints in between. What is compared is CPU time of the process, so that what else
the machine does counts little: tokens a CPU second, and microseconds a step beside the model's own work, measured with
a model so small that its work is next to nothing. Medians of `--pairs` pairs, and their ratio.
"""

import argparse
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
from spectrakit.config.compose import compose
from spectrakit.distributed.context import create_run_context
from spectrakit.lm.language_model import LanguageModel
from spectrakit.steps.state import Execution
from spectrakit.system.platforms.detect import detect
from spectrakit.training.loop import train_run
from spectrakit.watchdog.budget import Budget, TimeLimit

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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    measure("hidden 256, rows of 256", 256, 256, options.steps, options.pairs)
    measure("hidden 16, rows of 16", 16, 16, 5 * options.steps, options.pairs)
