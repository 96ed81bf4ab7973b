"Every word of the documents that this project was asked to implement works, or is answered with the right one."

import pytest

import spectrakit as sk
from helpers import refusal
from spectrakit.config.compose import compose
from spectrakit.config.schema import get
from spectrakit.system.errors import RequestError

pytestmark = pytest.mark.usefixtures("here")

WORKS = {  # a word as it is typed → the setting that it means, and its value
    # the configuration review: top-level keys of its YAML files
    "batch_size=8": ("data.micro_batch_size", 8),
    "num_workers=0": ("dataloader.num_workers", 0),
    "pin_memory=false": ("dataloader.pin_memory", False),
    "persistent_workers=true": ("dataloader.persistent_workers", True),
    "prefetch_factor=3": ("dataloader.prefetch_factor", 3),
    "checkpoint_interval=5": ("checkpoint.every_n_epochs", 5),
    "training.checkpoint_interval=5": ("checkpoint.every_n_epochs", 5),
    "epochs=100": ("trainer.max_epochs", 100),
    "mixed_precision=true": ("distributed.mixed_precision", "fp16"),
    "mixed_precision=false": ("distributed.mixed_precision", "no"),
    "gradient_accumulation_steps=4": ("training.gradient_accumulation_steps", 4),
    "compile_model=true": ("trainer.compile", True),
    "training.gradient_checkpointing=true": ("training.gradient_checkpointing", True),
    "gradient_checkpointing=true": ("training.gradient_checkpointing", True),
    "swa=last:3": ("training.average", "last:3"),
    "training.swa=best:2": ("training.average", "best:2"),
    "output_dir=/results/a100": ("run.dir", "/results/a100"),
    # the accumulation policies
    "accumulate_grad_batches=2": ("training.gradient_accumulation_steps", 2),
    "local/accumulate_grad_batches=high": ("training.gradient_accumulation_steps", 4),
    "local/accumulate_grad_batches=train@accumulate_grad_batches=4": ("training.gradient_accumulation_steps", 4),
    "training.gradient_accumulation_steps=4": ("training.gradient_accumulation_steps", 4),
    "val_loader.accumulate_grad_batches=1": ("eval.gradient_accumulation_steps", 1),
    "test_loader.accumulate_grad_batches=1": ("test.gradient_accumulation_steps", 1),
    "data.batch_size=64": ("data.micro_batch_size", 64),
    "grad_clip_norm=1": ("trainer.gradient_clip_val", 1),
    # the trainer profiles
    "trainer.max_epochs=30": ("trainer.max_epochs", 30),
    "trainer.check_val_every_n_epoch=2": ("trainer.check_val_every_n_epoch", 2),
    "trainer.precision=bf16-mixed": ("distributed.mixed_precision", "bf16"),
    "trainer.accelerator=gpu": ("trainer.accelerator", "gpu"),
    "trainer.devices=8": ("distributed.world_size", 8),
    "trainer.num_nodes=2": ("distributed.num_nodes", 2),
    "trainer.strategy=ddp": ("distributed.strategy", "ddp"),
    "trainer.strategy.init_args.static_graph=true": ("distributed.static_graph", True),
    "trainer.strategy.init_args.bucket_cap_mb=50": ("distributed.bucket_cap_mb", 50),
    "trainer.strategy.init_args.timeout=1800": ("distributed.timeout_s", 1800),
    "trainer.sync_batchnorm=true": ("distributed.sync_batchnorm", True),
    "trainer.accumulate_grad_batches=2": ("training.gradient_accumulation_steps", 2),
    "trainer.gradient_clip_val=1.0": ("trainer.gradient_clip_val", 1.0),
    "trainer.dataloader.num_workers=8": ("dataloader.num_workers", 8),
    "trainer.dataloader.prefetch_factor=4": ("dataloader.prefetch_factor", 4),
    "trainer.deterministic=true": ("trainer.deterministic", True),
    "model_checkpoint.every_n_epochs=2": ("checkpoint.every_n_epochs", 2),
    "+limits.train_frac=0.5": ("limits.train_frac", 0.5),
    "+limits.max_train_batches=300": ("limits.max_train_batches", 300),
    # the plan for several GPUs
    "distributed.enabled=true": ("distributed.enabled", True),
    "distributed.backend=nccl": ("distributed.backend", "nccl"),
    "distributed.world_size=auto": ("distributed.world_size", "auto"),
    "distributed.grad_accumulation=2": ("training.gradient_accumulation_steps", 2),
    "distributed.sync_batchnorm=true": ("distributed.sync_batchnorm", True),
    "distributed.fp16=true": ("distributed.mixed_precision", "fp16"),
    # TrainerConfig
    "grad_accum=16": ("training.gradient_accumulation_steps", 16),
    "lr=5e-6": ("optimizer.lr", 5e-6),
    "max_steps=1000": ("trainer.max_steps", 1000),
    "checkpoint_steps=250": ("checkpoint.every_n_steps", 250),
    "checkpoint_steps=0": ("checkpoint.every_n_steps", None),
    "resume_from=/path/to/step-1000": ("resume.source", "/path/to/step-1000"),
    "log_with=tensorboard": ("tracking.names", ["tensorboard"]),
    "eval_batches=50": ("limits.max_val_batches", 50),
    "seed=42": ("seed", 42),
    # other kits
    "warmup_ratio=0.1": ("scheduler.warmup_ratio", 0.1),
    "training.warmup_ratio=0.1": ("scheduler.warmup_ratio", 0.1),
    "trainer.val_check_interval=0.25": ("trainer.val_check_interval", 0.25),
    "trainer.strategy.name=diloco": ("distributed.strategy", "diloco"),
    "trainer.strategy=diloco": ("distributed.strategy", "diloco"),
    "diloco_loops=10": ("diloco.loops", 10),
    "outer_lr=1.0": ("diloco.outer_lr", 1.0),
    "outer_momentum=0.95": ("diloco.outer_momentum", 0.95),
    "outer_lr_schedule=cosine": ("diloco.outer_lr_schedule", "cosine"),
    "outer_lr_schedule=null": ("diloco.outer_lr_schedule", "none"),
    "outer_opt=Adam": ("diloco.outer_opt", "Adam"),
    "outer_opt_kwargs={nesterov:true}": ("diloco.outer_opt_kwargs", {"nesterov": True}),
    "diloco.outer_opt_kwargs.nesterov=true": ("diloco.outer_opt_kwargs", {"nesterov": True}),
    "outer_grad_clip=1.0": ("diloco.outer_grad_clip", 1.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("word", WORKS)
def test_it_works(word):
    key, value = WORKS[word]
    assert get(compose(word), key) == value


TASKS_OWN = "data_dir data.data_dir model_name dataset_name subset text_field seq_len dynamic_batch shuffle_buffer"
ANSWERED = {
    **{f"{word}=3": "task.NAME=VALUE" for word in TASKS_OWN.split()},
    "inner_opt=AdamW": "'optimizer.name'",
    "inner_opt_kwargs=0.01": "'optimizer.weight_decay'",
    "log_dir=logs": "'run.dir'",
    "overfit_batches=1": "limits.max_train_batches=1 data.shuffle=false",
    "trainer.overfit_batches=1": "limits.max_train_batches=1 data.shuffle=false",
    "resume=true": "'resume.source'",
    "checkpoint=last.pt": "'resume.source'",
    "BGB_LIMIT_FILES=2": "'limits.max_files'",
    "use_ddp=true": "'distributed.enabled'",
    "world_size=2": "'distributed.world_size'",
    "devices=2": "'trainer.devices'",
    "precision=16": "'trainer.precision'",
    "accelerator=gpu": "'trainer.accelerator'",
    "strategy=ddp": "'trainer.strategy'",
    "num_nodes=2": "'trainer.num_nodes'",
    "max_epochs=3": "'trainer.max_epochs'",
    "static_graph=true": "'distributed.static_graph'",
    "bucket_cap_mb=50": "'distributed.bucket_cap_mb'",
    "sync_batchnorm=true": "'distributed.sync_batchnorm'",
    "gradient_clip_val=1": "'trainer.gradient_clip_val'",
    "weight_decay=0.01": "'optimizer.weight_decay'",
    "warmup_steps=3": "'scheduler.warmup_steps'",
    "time_budget=9h": "'watchdog.limit'",
    "hpo=sweep": "There are: default, grid, random, smoke",
    # what people type beside
    "gpus=2": "'trainer.devices'",
    "ema=0.99": "'training.ema_decay'",
    "clip=1.0": "'trainer.gradient_clip_val'",
    "wandb=true": "'tracking.names'",
    "save_every=100": "'checkpoint.every_n_steps'",
    "log_every=10": "'trainer.log_every_n_steps'",
    "fast_dev_run=true": "trainer=smoke",
}


@pytest.mark.parametrize("word", ANSWERED)
def test_it_is_answered_with_the_right_one(word):
    with pytest.raises(RequestError) as caught:
        compose(word)
    assert ANSWERED[word] in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "word, says",
    [
        ("trainr=kaggle", "Did you mean trainer=kaggle?"),
        ("Trainer=kaggle", "Did you mean trainer=kaggle?"),
        ("TRAINER=kaggle", "Did you mean trainer=kaggle?"),
        ("trainers=kaggle", "Did you mean trainer=kaggle?"),
        ("train=kaggle_safe", "Did you mean trainer=kaggle_safe?"),
        ("enviroment=kaggle", "Did you mean env=kaggle?"),
        ("environment=colab", "Did you mean env=colab?"),
        ("Env=local", "Did you mean env=local?"),
        ("trainr=kagle_safe", "Did you mean the group trainer? It has a100, "),
        ("trainr=kagle_safe", "Did you mean 'kaggle_safe'"),
        ("local/accumulate_grad_batch=high", "'local/accumulate_grad_batches'"),
    ],
)
def test_a_misspelt_group_is_answered_with_the_group(word, says):
    said = refusal(word)
    assert "no group of profiles" in said and says in said


@pytest.mark.parametrize("word", ["training=3", "traine.max_epochs=3", "optimizer=sgd", "envs.NCCL_DEBUG=INFO"])
def test_what_is_near_a_group_and_was_not_meant_as_one_is_answered_as_a_setting(word):
    with pytest.raises(RequestError) as caught:
        compose(word)
    assert "no group of profiles" not in str(caught.value)


# What people write into a file to choose a profile, or misspell, and what they are told.
FILES = {
    "trainer: kaggle": "Did you mean trainer=kaggle?",
    "trainer: kaggel": "Did you mean 'kaggle'?",
    "trainr: kaggle": "Did you mean trainer=kaggle?",
    "Trainer: kaggle_safe": "Did you mean trainer=kaggle_safe?",
    "trainers: kaggle": "Did you mean trainer=kaggle?",
    "enviroment: kaggle": "Did you mean env=kaggle?",
}


@pytest.mark.parametrize("line", FILES)
def test_a_profile_in_the_wrong_place_of_a_file_is_told_where_it_belongs(tmp_path, line):
    (tmp_path / "mine.yaml").write_text(f"{line}\n")
    with pytest.raises(RequestError) as error:
        compose(config=tmp_path / "mine.yaml")
    told = str(error.value)
    assert FILES[line] in told and "`defaults: [{trainer: kaggle}]`" in told and "mine.yaml" in told
    (tmp_path / "mine.yaml").write_text("defaults: [{trainer: kaggle}]\n")
    assert compose(config=tmp_path / "mine.yaml").profile == "kaggle"


# What people pass as an argument who come from other libraries, and the word that it is here.
ARGUMENTS = {
    "max_epochs": (3, "fit(…, 'trainer.max_epochs=3')"),
    "num_train_epochs": (3, "fit(…, 'trainer.max_epochs=3')"),
    "lr": (0.1, "fit(…, 'lr=0.1')"),
    "gpus": (2, "fit(…, 'trainer.devices=2')"),
    "ema": (True, "fit(…, 'training.ema_decay=…')"),
    "num_epochs": ([3], "fit(…, 'trainer.max_epochs=…')"),
    "predcit": ("x.csv", "Did you mean 'predict'?"),
    "callbacks": ([], "It has task, config, overrides, resume, predict, show, trust, on_error; write settings as text"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_setting_passed_as_an_argument_is_answered_with_its_word(name):
    value, says = ARGUMENTS[name]
    with pytest.raises(RequestError, match=f"fit has no argument '{name}'") as error:
        sk.fit("coffee", **{name: value})
    assert says in str(error.value)


@pytest.mark.parametrize("name", ["check", "compose", "cross_validate", "find_lr", "predict", "preflight", "search"])
def test_every_call_that_takes_words_says_so(name):
    given = () if name == "compose" else ("coffee",)
    with pytest.raises(RequestError, match=f"Write settings as text: {name}\\(…, 'seed=7'\\)"):
        getattr(sk, name)(*given, seed=7)
