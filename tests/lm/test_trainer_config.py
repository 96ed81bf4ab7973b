"""`sk.lm.TrainerConfig`: the four examples of its guide, composed in full, equal to the profiles of the group `lm`, and
run with a tiny model in place of the large one; every field does what it says.
"""

import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
import yaml

import tiny_lm
from spectrakit.api.run import open_run
from spectrakit.checkpoint.store import checkpoints
from spectrakit.config.compose import compose, diff
from spectrakit.lm.trainer_config import TrainerConfig, TrainerFields
from spectrakit.runs.events import columns
from spectrakit.system.errors import RequestError

EXAMPLES = {
    "quick_start": TrainerConfig(
        model_name="Qwen/Qwen3-8B",
        dataset_name="HuggingFaceFW/fineweb-edu",
        subset="sample-10BT",
        output_dir="./training_output",
        seq_len=2048,
        batch_size=1,
        grad_accum=16,
        lr=5e-6,
        max_steps=1000,
        diloco_loops=10,
        outer_lr=0.7,
        outer_momentum=0.9,
        checkpoint_steps=250,
        log_with="tensorboard",
        eval_batches=50,
    ),
    "small_experiment": TrainerConfig(
        model_name="microsoft/DialoGPT-small",
        dataset_name="squad",
        subset="train[:1000]",
        output_dir="./experiment",
        seq_len=512,
        batch_size=1,
        grad_accum=8,
        lr=1e-5,
        max_steps=100,
        diloco_loops=5,
        outer_lr=0.7,
        checkpoint_steps=50,
        log_with="tensorboard",
    ),
    "production": TrainerConfig(
        model_name="Qwen/Qwen3-8B",
        dataset_name="HuggingFaceFW/fineweb-edu",
        subset="sample-10BT",
        output_dir="./qwen-production-run",
        seq_len=4096,
        batch_size=4,
        grad_accum=16,
        lr=5e-6,
        max_steps=2000,
        diloco_loops=50,
        outer_lr=1.0,
        outer_momentum=0.9,
        outer_lr_schedule="cosine",
        checkpoint_steps=500,
        log_with="wandb",
        eval_batches=100,
        num_workers=8,
    ),
    "memory_efficient": TrainerConfig(
        model_name="meta-llama/Llama-2-13b-hf",
        dataset_name="OpenAssistant/oasst1",
        subset="train",
        output_dir="./llama-efficient",
        seq_len=2048,
        batch_size=1,
        grad_accum=32,
        lr=3e-6,
        max_steps=1500,
        diloco_loops=20,
        outer_lr=0.5,
        dynamic_batch=True,
        checkpoint_steps=300,
        outer_grad_clip=1.0,
    ),
}
GUIDE = (
    "model_name dataset_name subset output_dir text_field seq_len batch_size grad_accum dynamic_batch lr outer_lr "
    "outer_momentum outer_lr_schedule max_steps diloco_loops inner_opt inner_opt_kwargs outer_opt outer_opt_kwargs "
    "outer_grad_clip checkpoint_steps resume_from log_with log_dir eval_batches num_workers seed shuffle_buffer"
)


def test_it_has_the_fields_of_the_guide_in_its_order():
    assert [field.name for field in fields(TrainerFields)][: len(GUIDE.split())] == GUIDE.split()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_the_profile_of_its_name(name):
    assert diff(EXAMPLES[name].compose(), compose(f"lm={name}")) == {}


def test_an_example_is_composed_in_full():
    c = EXAMPLES["production"].compose()
    assert (c.task["model"], c.task["data"], c.task["subset"]) == (
        "Qwen/Qwen3-8B",
        "HuggingFaceFW/fineweb-edu",
        "sample-10BT",
    )
    assert (c.task["seq_len"], c.task["lengths"], c.data.micro_batch_size) == (4096, "padded", 4)
    assert (c.training.gradient_accumulation_steps, c.optimizer.lr, c.optimizer.name) == (16, 5e-6, "adamw")
    d = c.diloco
    assert (d.max_steps, d.loops, d.outer_opt, d.outer_lr, d.outer_momentum) == (2000, 50, "SGD", 1.0, 0.9)
    assert (d.outer_lr_schedule, d.outer_grad_clip, c.distributed.strategy) == ("cosine", None, "diloco")
    assert (c.checkpoint.every_n_steps, c.limits.max_val_batches, c.trainer.check_val_every_n_steps) == (500, 100, 2000)
    assert (c.dataloader.num_workers, c.seed, c.data.shuffle_buffer) == (8, 42, 10_000)
    assert list(c.tracking.names) == ["csv", "wandb"] and c.run.dir == "./qwen-production-run"


def test_the_package_is_looked_up_lazily():
    code = (
        "import sys, spectrakit as sk; sk.lm.TrainerConfig('./m', './d').compose(); "
        "print([m for m in ('torch', 'transformers', 'datasets', 'peft') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    here = tmp_path_factory.mktemp("lm")
    tiny_lm.save_model(here / "model")
    tiny_lm.save_lines(here / "texts.jsonl", field="context")
    return here


SHORT = (
    "trainer.accelerator=cpu",
    "launch.mode=inline",
    "run.console=none",
    "trainer.log_every_n_steps=1",
    "trainer.log_min_seconds=0",
)


def shortened(config: TrainerConfig, tiny: Path, out: Path, **changes) -> TrainerConfig:
    "An example with the tiny model, its texts, and rounds of some steps; all else stays."
    small = {
        "max_steps": 3,
        "diloco_loops": 2,
        "seq_len": 32,
        "grad_accum": 2,
        "checkpoint_steps": 3,
        "eval_batches": 2,
    }
    given = {"model_name": str(tiny / "model"), "dataset_name": str(tiny / "texts.jsonl"), "output_dir": str(out)}
    given["subset"] = {"train[:1000]": "train[:200]", "train": "train"}.get(config.subset)  # of the hub's data no part
    log = None if config.log_with == "wandb" else config.log_with
    return replace(config, **{**given, **small, "log_with": log, "overrides": SHORT, **changes})


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_trains_a_tiny_model_and_leaves_it(tmp_path, tiny, name):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    config = shortened(EXAMPLES[name], tiny, tmp_path / "out")
    run = config.fit(show=False)
    assert run.status == "completed", run.error
    assert [event["steps"] for event in run.events if event["type"] == "round"] == [3, 3]
    assert columns(run.events, "eval", "step")["step"] == [3, 6]
    rates = [event["outer_lr"] for event in run.events if event["type"] == "round"]
    assert rates == ([1.0, 0.5] if name == "production" else [config.outer_lr] * 2)
    assert (list((tmp_path / "out/logs").rglob("events.out.tfevents*")) != []) == (config.log_with == "tensorboard")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out/final")
    trained = run.load_model().state_dict()
    assert all(torch.equal(value, trained[key]) for key, value in model.state_dict().items())
    assert AutoTokenizer.from_pretrained(tmp_path / "out/final")("one two")["input_ids"] == [2, 3]


@pytest.mark.slow
def test_fields_that_no_example_sets(tmp_path, tiny):
    config = shortened(
        EXAMPLES["small_experiment"],
        tiny,
        tmp_path / "out",
        text_field="context",
        inner_opt="RMSprop",
        inner_opt_kwargs={"weight_decay": 0.1, "alpha": 0.9},
        outer_opt="Adam",
        outer_opt_kwargs={"betas": [0.8, 0.9]},
        checkpoint_steps=2,
        eval_batches=0,
        num_workers=0,
        seed=7,
        shuffle_buffer=3,
        log_dir=str(tmp_path / "board"),
        packing=True,
        subset=None,
        gradient_checkpointing=True,
    )
    first = config.fit("checkpoint.keep_last=9", "checkpoint.background=false", "checkpoint.max_share=1", show=False)
    assert first.status == "completed", first.error
    assert first.metrics == {} and first.config.optimizer.options == {"alpha": 0.9}
    assert list((tmp_path / "board" / first.path.name).iterdir())
    steps = [path.name for path in checkpoints(first.path / "checkpoints")]
    assert steps == ["step-00000002", "step-00000004", "step-00000006"]
    again = replace(config, resume_from=str(first.path / "checkpoints" / steps[0]), output_dir=str(tmp_path / "again"))
    second = again.fit("checkpoint.keep_last=9", show=False)
    assert second.status == "completed", second.error
    one, other = (open_run(path).load_model().state_dict() for path in (first.path, second.path))
    assert all(torch.equal(one[key], other[key]) for key in one)  # from the middle of a round, to the bit
    none = replace(config, checkpoint_steps=0, output_dir=str(tmp_path / "none")).fit(show=False)
    assert [path.name for path in checkpoints(none.path / "checkpoints")] == ["step-00000006"]


def test_the_profiles_of_the_group_are_plain_yaml_with_their_meaning():
    import spectrakit

    folder = Path(spectrakit.__file__).parent / "profiles/lm"
    assert {path.stem for path in folder.glob("*.yaml")} == {*EXAMPLES, "default"}
    for path in folder.glob("*.yaml"):
        assert yaml.safe_load(path.read_text()) and all(
            "#" in line for line in path.read_text().splitlines() if ": " in line
        )


def test_wrong_values_are_refused_in_the_words_of_the_guide():
    for field, value, said in (
        ("grad_accum", 0, "whole number from 1 up"),
        ("outer_lr_schedule", "cosin", "Did you mean 'cosine'"),
        ("inner_opt", "AdmW", "Did you mean 'adamw'"),
        ("log_with", "tensorbord", "Did you mean 'tensorboard'"),
        ("outer_grad_clip", 0.0, "above 0"),
        ("outer_momentum", 1, "from 0 to 0.9999"),
        ("resume_from", 5, "a text, or None"),
        ("seed", 2**32, "from 0 to 4294967295"),
        ("inner_opt_kwargs", {"eps": {1, 2}}, "a dict of plain values"),
        ("outer_opt_kwargs", {1: 2}, "a dict of plain values"),
        ("overrides", "trainer=smoke", "several settings"),
    ):
        with pytest.raises(RequestError, match=said) as caught:
            TrainerConfig("./m", "./d", **{field: value})
        assert str(caught.value).startswith(f"TrainerConfig({field}={value!r})")


def test_paths_are_taken_as_their_text(tmp_path):
    config = TrainerConfig(tmp_path / "m", tmp_path / "d", output_dir=tmp_path / "out", log_dir=tmp_path / "logs")
    assert (config.model_name, config.log_dir) == (str(tmp_path / "m"), str(tmp_path / "logs"))
    assert config.compose().run.dir == str(tmp_path / "out")


def test_a_place_for_the_model_that_is_taken_is_refused_before_the_training(tmp_path):
    (tmp_path / "final").mkdir()
    (tmp_path / "final/config.json").write_text("{}")
    (tmp_path / "final/notes.txt").write_text("mine")
    config = TrainerConfig("./nowhere", "./nothing", output_dir=str(tmp_path))  # a run would refuse these
    with pytest.raises(RequestError, match="has files of no exported model"):
        config.fit(show=False)
    assert [path.name for path in tmp_path.iterdir()] == ["final"] and (tmp_path / "final/notes.txt").exists()
