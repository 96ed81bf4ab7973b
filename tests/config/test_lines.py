"Lines as people type them, and what each has to compose to; wrong words and the right ones that are proposed."

from dataclasses import replace

import pytest

from helpers import refusal
from spectrakit.config.aliases import ALIASES
from spectrakit.config.auto_settings import ignored_settings, platform_notes
from spectrakit.config.compose import compose, diff, from_dict
from spectrakit.config.profile_files import profiles
from spectrakit.config.schema import get, to_dict
from spectrakit.system.errors import RequestError
from spectrakit.system.platforms.detect import detect

pytestmark = pytest.mark.usefixtures("here")

LINES = {
    "trainer=kaggle_safe": {"profile": "kaggle_safe", "watchdog.limit": "8h30m"},
    "trainer.max_epochs=30 trainer.check_val_every_n_epoch=1": {
        "trainer.max_epochs": 30,
        "trainer.check_val_every_n_epoch": 1,
    },
    "trainer.precision=16 trainer.accelerator=gpu trainer.devices=4": {
        "distributed.mixed_precision": "fp16",
        "trainer.accelerator": "gpu",
        "distributed.world_size": 4,
    },
    "trainer.strategy.init_args.static_graph=false": {"distributed.static_graph": False},
    "trainer.sync_batchnorm=true": {"distributed.sync_batchnorm": True},
    "trainer.accumulate_grad_batches=2 trainer.gradient_clip_val=1.0": {
        "training.gradient_accumulation_steps": 2,
        "trainer.gradient_clip_val": 1.0,
    },
    "trainer.dataloader.num_workers=8 trainer.dataloader.prefetch_factor=2": {
        "dataloader.num_workers": 8,
        "dataloader.prefetch_factor": 2,
    },
    "+limits.train_frac=0.5 +limits.max_train_batches=300": {"limits.train_frac": 0.5, "limits.max_train_batches": 300},
    "limits.train_frac=0.5 limits.max_train_batches=300": {"limits.train_frac": 0.5, "limits.max_train_batches": 300},
    "trainer=kaggle_safe +limits.train_frac=0.5 +limits.max_train_batches=400 trainer.max_epochs=16": {
        "profile": "kaggle_safe",
        "limits.train_frac": 0.5,
        "limits.max_train_batches": 400,
        "trainer.max_epochs": 16,
    },
    "trainer=multi_gpu trainer.devices=8 trainer.precision=bf16-mixed trainer.strategy.init_args.bucket_cap_mb=50": {
        "profile": "multi_gpu",
        "distributed.world_size": 8,
        "distributed.mixed_precision": "bf16",
        "distributed.bucket_cap_mb": 50,
    },
    "trainer=ddp trainer.devices=8 trainer.num_nodes=2 trainer.strategy.init_args.static_graph=true": {
        "profile": "ddp",
        "distributed.world_size": 16,
        "distributed.num_nodes": 2,
        "distributed.static_graph": True,
    },
    "trainer=ddp trainer.devices=4": {"distributed.world_size": 8, "distributed.num_nodes": 2},
    "local/accumulate_grad_batches=high": {"training.gradient_accumulation_steps": 4},
    "local/accumulate_grad_batches=train": {"training.gradient_accumulation_steps": 2},
    "local/accumulate_grad_batches=default": {"training.gradient_accumulation_steps": 2},
    "local/accumulate_grad_batches=debug trainer=kaggle": {
        "training.gradient_accumulation_steps": 1,
        "profile": "kaggle",
    },
    "accumulate_grad_batches=4": {"training.gradient_accumulation_steps": 4},
    "local/accumulate_grad_batches@val_loader=val": {"eval.gradient_accumulation_steps": 1},
    "local/accumulate_grad_batches@val_loader=high": {
        "eval.gradient_accumulation_steps": 4,
        "training.gradient_accumulation_steps": 2,
    },
    "local/accumulate_grad_batches@test_loader=test": {"test.gradient_accumulation_steps": 1},
    "local/accumulate_grad_batches=train@accumulate_grad_batches=4": {"training.gradient_accumulation_steps": 4},
    "local/accumulate_grad_batches=train@accumulate_grad_batches=1": {"training.gradient_accumulation_steps": 1},
    "distributed.fp16=true": {"distributed.mixed_precision": "fp16"},
    "distributed.grad_accumulation=3": {"training.gradient_accumulation_steps": 3},
    "distributed.enabled=false": {"distributed.enabled": False},
    "distributed.world_size=auto distributed.backend=gloo": {
        "distributed.world_size": "auto",
        "distributed.backend": "gloo",
    },
    "distributed.env.NCCL_DEBUG=INFO": {"distributed.env": {"NCCL_DEBUG": "INFO"}},
    "trainer.strategy=ddp_find_unused_parameters_true": {
        "distributed.strategy": "ddp",
        "distributed.find_unused_parameters": True,
    },
    "trainer=ddp trainer.num_nodes=4": {"distributed.world_size": 32, "distributed.num_nodes": 4},
    "trainer=ddp distributed.num_nodes=4": {"distributed.world_size": 32, "distributed.num_nodes": 4},
    "trainer=ddp distributed.num_nodes=4 distributed.world_size=8": {
        "distributed.world_size": 8,
        "distributed.num_nodes": 4,
    },
    "trainer=gpu distributed.num_nodes=4": {"distributed.world_size": "auto", "distributed.num_nodes": 4},
    "distributed.fp16=false trainer.precision=bf16": {"distributed.mixed_precision": "bf16"},
    "trainer=a100 distributed.fp16=false": {"distributed.mixed_precision": "bf16"},
    "distributed.fp16=false": {"distributed.mixed_precision": "no"},
    "training.gradient_accumulation_steps=${accumulate_grad_batches}": {"training.gradient_accumulation_steps": 2},
    "training.gradient_accumulation_steps=${accumulate_grad_batches} local/accumulate_grad_batches=high": {
        "training.gradient_accumulation_steps": 4
    },
    "training.gradient_accumulation_steps=${accumulate_grad_batches} accumulate_grad_batches=3": {
        "training.gradient_accumulation_steps": 3
    },
    "eval.gradient_accumulation_steps=${val_loader.accumulate_grad_batches}": {"eval.gradient_accumulation_steps": 1},
    "test.gradient_accumulation_steps=${test_loader.accumulate_grad_batches}": {"test.gradient_accumulation_steps": 1},
    "local/accumulate_grad_batches=null": {"training.gradient_accumulation_steps": 1},
    "local/accumulate_grad_batches=null trainer=kaggle": {"training.gradient_accumulation_steps": 2},
    "local/accumulate_grad_batches@val_loader=null env=null": {"eval.gradient_accumulation_steps": 1, "env": "auto"},
    "trainer=smoke": {"watchdog.since": "run"},
    "trainer=ci_fast": {"watchdog.since": "run"},
    "model_checkpoint.every_n_epochs=5": {"checkpoint.every_n_epochs": 5},
    "trainer.log_every_n_steps=20": {"trainer.log_every_n_steps": 20},
    "trainer.monitor=val_accuracy trainer.mode=max": {"checkpoint.monitor": "val_accuracy", "checkpoint.mode": "max"},
    "trainer.dataloader.pin_memory=false trainer.dataloader.persistent_workers=true": {
        "dataloader.pin_memory": False,
        "dataloader.persistent_workers": True,
    },
    "env=kaggle": {"env": "kaggle", "run.dir": "/kaggle/working/runs", "dataloader.num_workers": 2},
    "env=wsl2": {"env": "wsl2", "dataloader.num_workers": 0, "dataloader.pin_memory": False},
    "env=cloud trainer=local_safe": {"env": "cloud", "dataloader.num_workers": 0},
}


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_a_line_as_it_is_typed(line):
    config = compose(*line.split())
    assert {key: get(config, key) for key in LINES[line]} == LINES[line]


def test_a_line_moves_nothing_else():
    assert set(diff(compose(), compose("trainer.sync_batchnorm=true"))) == {"distributed.sync_batchnorm"}
    high = compose("local/accumulate_grad_batches=high")
    assert set(diff(compose(), high)) == {"training.gradient_accumulation_steps"}


def test_the_joined_line_is_noted(capsys):
    compose("local/accumulate_grad_batches=train@accumulate_grad_batches=4")
    assert "read as two overrides" in capsys.readouterr().err


@pytest.mark.parametrize("profile", profiles()["trainer"])
def test_limit_files_counts_in_smoke_and_ci_fast_only(profile, monkeypatch):
    monkeypatch.setenv("SPECTRAKIT_LIMIT_FILES", "2")
    assert compose(f"trainer={profile}").limits.max_files == (2 if profile in ("smoke", "ci_fast") else None)


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["smoke", "ci_fast"])
def test_limit_files_may_be_empty_and_a_wrong_one_is_one_sentence(profile, monkeypatch):
    for empty in ("", " "):
        monkeypatch.setenv("SPECTRAKIT_LIMIT_FILES", empty)
        assert compose(f"trainer={profile}").limits.max_files is None
    for wrong, says in (
        ("abc", "is not possible: it needs a whole number from 1 up"),
        ("0", "is out of range"),
        ("2.5", "is not possible"),
    ):
        monkeypatch.setenv("SPECTRAKIT_LIMIT_FILES", wrong)
        with pytest.raises(RequestError) as caught:
            compose(f"trainer={profile}")
        assert str(caught.value).startswith(f"SPECTRAKIT_LIMIT_FILES={wrong} {says}") and "\n" not in str(caught.value)
        assert "stands in" not in str(caught.value) and compose(f"trainer={profile}", "limits.max_files=3")


@pytest.mark.slow
@pytest.mark.parametrize("alias", sorted(ALIASES))
def test_every_other_word_reaches_its_setting(alias):
    config = compose()
    target = ALIASES[alias]
    value = {
        "distributed.mixed_precision": "bf16",
        "distributed.strategy": "fsdp",
        "distributed.backend": "gloo",
        "checkpoint.monitor": "val_x",
        "checkpoint.mode": "max",
        "optimizer.lr": 0.5,
        "distributed.timeout_s": 7,
        "trainer.gradient_clip_val": 7.5,
        "checkpoint.every_minutes": 7.5,
        "run.console": "none",
        "checkpoint.mirror": "elsewhere",
        "checkpoint.max_share": 0.5,
        "tracking.names": ["csv"],
        "tracking.mode": "offline",
        "tracking.project": "mine",
        "scheduler.warmup_ratio": 0.25,
        "training.average": "last:3",
        "resume.source": "elsewhere",
        "run.dir": "elsewhere",
        "diloco.outer_momentum": 0.5,
        "diloco.outer_lr_schedule": "cosine",
        "diloco.outer_opt": "Adam",
        "diloco.outer_opt_kwargs": {"nesterov": True},
    }.get(target)
    if value is None:
        now = get(config, target)
        value = not now if isinstance(now, bool) else True if target == "dataloader.pin_memory" else 7
    typed = str(value).replace("'", "") if isinstance(value, (list, dict)) else value
    assert get(compose(f"{alias}={typed}"), target) == value


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong, right",
    [
        ("trainer=kagle_safe", "kaggle_safe"),
        ("env=kagle", "kaggle"),
        ("local/accumulate_grad_batches=hihg", "high"),
        ("local/accumulate_grad_batch=high", "local/accumulate_grad_batches"),
        ("trainer.max_epoch=3", "trainer.max_epochs"),
        ("distributed.fall_back=false", "distributed.fallback"),
        ("distributed.noderank=1", "distributed.node_rank"),
        ("distributed.rdzv_endpint=a:1", "distributed.rdzv_endpoint"),
        ("launch.max_restart=1", "launch.max_restarts"),
        ("launch.mode=torchrunn", "torchrun"),
        ("launch.start_timeout=9", "launch.start_timeout_s"),
        ("launch.mode=notebook_luncher", "notebook_launcher"),
        ("distributed.sync_batch_norm=true", "distributed.sync_batchnorm"),
        ("data.batchsize=3", "data.batch_size"),
        ("dataloader.num_worker=3", "num_workers"),
        ("optimizer.weightdecay=3", "optimizer.weight_decay"),
        ("scheduler.warmup_step=3", "scheduler.warmup_steps"),
        ("training.ema=3", "training.ema_decay"),
        ("early_stopping.patiens=3", "early_stopping.patience"),
        ("checkpoint.every_epochs=3", "every_n_epochs"),
        ("limits.train_fraction=0.5", "limits.train_frac"),
        ("watchdog.limits=9h", "watchdog.limit"),
        ("launch.mod=inline", "launch.mode"),
        ("run.direction=x", "run.dir"),
        ("distributed.backend=ncll", "nccl"),
        ("distributed.strategy=fdsp", "fsdp"),
        ("trainer.strategy.init_args.static_grap=true", "static_graph"),
    ],
)
def test_a_wrong_word_in_every_group_gives_the_right_one(wrong, right):
    said = refusal(wrong)
    assert "Did you mean" in said and right in said, said


def test_what_has_no_effect_is_named():
    said = ignored_settings(compose("trainer=multi_gpu", "scheduler.power=3"))
    assert any("distributed.sync_batchnorm=true" in s and "one process" in s for s in said)
    assert any("scheduler.power=3" in s for s in said) and ignored_settings(compose("trainer=kaggle_safe")) == []


DILOCO = "trainer.strategy.name=diloco"


@pytest.mark.parametrize(
    "words, world_size, says",
    [
        (
            "distributed.node_rank=1 distributed.rdzv_endpoint=10.0.0.1:29500",
            1,
            "distributed.node_rank=1, distributed.rdzv_endpoint=10.0.0.1:29500: no effect here, "
            "because one machine trains",
        ),
        ("distributed.node_rank=1", 2, "distributed.node_rank=1: no effect here, because one machine trains"),
        ("distributed.node_rank=1 distributed.num_nodes=2", 2, None),
        ("distributed.timeout_s=9", 1, "distributed.timeout_s=9: no effect here, because one process trains"),
        (f"{DILOCO} diloco.compression=int8", 2, None),
        (
            f"{DILOCO} diloco.compression=int8",
            1,
            "diloco.compression=int8: no effect here, because a single worker exchanges nothing",
        ),
        (
            f"{DILOCO} diloco.overlap_steps=2 diloco.mixing=0.5",
            2,
            "diloco.overlap_steps=2, diloco.mixing=0.5: no effect here, because it needs diloco.fragments above 1",
        ),
        (f"{DILOCO} diloco.overlap_steps=2 diloco.fragments=2 outer_opt=torch.optim.SGD outer_momentum=0.5", 2, None),
        (
            f"{DILOCO} outer_opt=AdamW outer_momentum=0.5",
            2,
            "diloco.outer_momentum=0.5: no effect here, because only the outer optimizers SGD and RMSprop use it",
        ),
        (
            f"{DILOCO} diloco_loops=40 max_steps=500 trainer.max_epochs=3",
            2,
            "trainer.max_steps=500, trainer.max_epochs=3: no effect here, because diloco.loops sets the length, in "
            "rounds of diloco.max_steps",
        ),
        ("distributed.env.NCCL_DEBUG=INFO", 1, "distributed.env: no effect here, because one process trains"),
        ("distributed.env.NCCL_DEBUG=INFO distributed.timeout_s=9", 2, None),
        ("launch.start_timeout_s=9", 1, "launch.start_timeout_s=9.0: no effect here, because one process trains"),
        ("launch.start_timeout_s=9 launch.mode=torchrun launch.max_restarts=0", 2, None),
        ("launch.mode=torchrun", 1, "launch.mode=torchrun: no effect here, because one process needs no launcher"),
        ("launch.mode=inline", 1, None),
        ("launch.max_restarts=0 launch.hang_factor=9 launch.hang_floor_s=9", 1, None),
        (
            "launch.mode=inline launch.max_restarts=0",
            1,
            "launch.max_restarts=0: no effect here, because launch.mode=inline has no supervisor",
        ),
        ("distributed.fallback=false", 1, None),
        ("distributed.fallback=false", 2, None),
    ],
)
def test_what_has_no_effect_in_one_process_is_named(words, world_size, says):
    assert ignored_settings(compose(*words.split()), world_size) == ([says] if says else [])


@pytest.mark.parametrize(
    "words, says",
    [
        ("trainer.max_epochs=10 trainer.max_steps=3", "trainer.max_epochs=10: no effect here, because trainer"),
        ("trainer.max_steps=3", None),
        ("scheduler.power=2", "scheduler.power=2.0: no effect here"),
        ("tracking.project=spectrakit", "tracking.project=spectrakit: no effect here, because csv"),
        ("tracking.project=mine tracking.mode=offline", "tracking.project=mine, tracking.mode=offline: no effect here"),
        ("tracking.project=mine tracking.names=[csv,wandb]", None),
        ("distributed.timeout_s=auto", "distributed.timeout_s=auto: no effect here, because one process trains"),
        ("watchdog.since=run", "watchdog.since=run: no effect here, because watchdog.limit is null"),
    ],
)
def test_a_typed_setting_that_is_ignored_is_named_though_it_is_the_default(words, says):
    told = ignored_settings(compose(*words.split()))
    assert len(told) == 1 and told[0].startswith(says) if says else told == []


FACTS = {"has_valid": True, "resident": False, "own_optimizer": False, "own_scheduler": False}


@pytest.mark.slow
@pytest.mark.parametrize(
    "fact, value, words, says",
    [
        (
            "resident",
            True,
            "dataloader.num_workers=2",
            "dataloader.num_workers=2: no effect here, because the samples are",
        ),
        (
            "own_optimizer",
            True,
            "optimizer.lr=0.5 optimizer.name=sgd",
            "optimizer.name=sgd, optimizer.lr=0.5: no effect",
        ),
        (
            "own_scheduler",
            True,
            "scheduler.warmup_steps=3",
            "scheduler.warmup_steps=3: no effect here, because the task",
        ),
        *(
            ("has_valid", False, word, f"{word}: no effect here, because the task has no validation data")
            for word in (
                "early_stopping.enabled=true",
                "early_stopping.patience=10",
                "checkpoint.monitor=val_x",
                "checkpoint.mode=max",
                "trainer.check_val_every_n_epoch=1",
                "trainer.check_val_every_n_steps=7",
                "data.eval_batch_size=7",
                "limits.max_val_batches=7",
            )
        ),
    ],
)
def test_what_has_no_effect_by_the_facts_of_the_data_is_named(fact, value, words, says):
    config = compose(*words.split())
    told = ignored_settings(config, facts={**FACTS, fact: value})
    assert len(told) == 1 and told[0].startswith(says), told
    assert ignored_settings(config, facts=FACTS) == [] == ignored_settings(config, facts={})
    assert ignored_settings(compose("trainer=kaggle_safe"), facts={**FACTS, fact: value}) == []  # nobody asked for it
    with pytest.raises(TypeError, match="hasvalid"):
        ignored_settings(config, facts={"hasvalid": True})


def test_by_the_facts_a_config_of_unknown_words_goes_by_its_values():
    config = from_dict(to_dict(compose("trainer=kaggle", "dataloader.num_workers=2", "optimizer.lr=0.5")))
    facts = {"resident": True, "own_optimizer": True}
    assert [told.partition(":")[0] for told in ignored_settings(config, facts=facts)] == [
        "dataloader.persistent_workers=true",
        "optimizer.lr=0.5",
    ]  # env/ may have filled in the workers


def test_workers_under_wsl2_are_noted():
    wsl2 = replace(detect(environ={}), name="local", flavour="wsl2")
    assert "dataloader.num_workers=4" in platform_notes(compose("dataloader.num_workers=4"), wsl2)[0]
    assert "memory is scarce under WSL2" in platform_notes(compose("trainer=a100"), wsl2)[0]
    assert platform_notes(compose(), wsl2) == [] == platform_notes(compose("dataloader.num_workers=0"), wsl2)
    assert platform_notes(compose("dataloader.num_workers=4"), replace(wsl2, flavour=None)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong, says",
    [
        ("distributed.fallback=maybe", "true or false"),
        ("distributed.fallback=null", "true or false"),
        ("distributed.node_rank=-1", "from 0 up"),
        ("distributed.node_rank=1.5", "a whole number"),
        ("distributed.rdzv_endpoint=machine0", "host:port"),
        ("distributed.rdzv_endpoint=machine0:99999", "host:port"),
        ("distributed.rdzv_endpoint='a b:29500'", "host:port"),
        ("distributed.rdzv_endpoint=:29500", "host:port"),
        ("distributed.env=5", "distributed.env.NCCL_DEBUG=INFO"),
        ("launch.mode=fork", "notebook_launcher, torchrun"),
        ("launch.max_restarts=-1", "from 0 up"),
        ("launch.max_restarts=null", "a whole number"),
        ("launch.start_timeout_s=0", "above 0"),
        ("launch.start_timeout_s=soon", "a number above 0"),
        ("launch.hang_factor=1", "from 2 up"),
        ("launch.hang_floor_s=0", "above 0"),
        ("launch.hang_floor_s=inf", "above 0"),
    ],
)
def test_a_wrong_value_for_several_processes_is_one_sentence(wrong, says):
    said = refusal(wrong)
    assert said.startswith(wrong.partition("=")[0]) and says in said, said
