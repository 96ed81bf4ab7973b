"The profiles of the group `trainer`: what they promise, that they take overrides, that they explain each key."

import os
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import spectrakit
from spectrakit.config.auto_settings import resolve_env
from spectrakit.config.compose import compose, diff, from_dict, profile_settings, sha256, snapshot
from spectrakit.config.profile_files import load_yaml, profile_intent, profiles
from spectrakit.config.schema import get, to_dict
from spectrakit.distributed.topology import plan_processes
from spectrakit.system.errors import RequestError
from spectrakit.system.hardware import Gpu
from spectrakit.system.platforms.detect import detect
from spectrakit.system.precision import choose_precision
from spectrakit.system.units import parse_duration
from spectrakit.watchdog.time_budget import Budget, check_time, time_limit

NAMES = (
    "a100",
    "ci_fast",
    "ddp",
    "defaults",
    "gpu",
    "h100_bf16",
    "kaggle",
    "kaggle_2xt4",
    "kaggle_safe",
    "local_safe",
    "multi_gpu",
    "smoke",
)
FOLDER = Path(spectrakit.__file__).parent / "profiles"
pytestmark = pytest.mark.usefixtures("here")


def test_these_profiles_are_there_and_say_what_they_are_for():
    assert profiles()["trainer"] == list(NAMES)
    intents = {profile_intent(name) for name in NAMES}
    assert len(intents) == len(NAMES) and min(map(len, intents)) > 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, key, value",
    [
        ("defaults", "distributed.world_size", 1),
        ("defaults", "distributed.mixed_precision", "fp16"),
        ("defaults", "trainer.deterministic", True),
        ("defaults", "trainer.check_val_every_n_epoch", 1),
        ("defaults", "watchdog.limit", None),
        ("defaults", "checkpoint.enabled", True),
        *(
            (name, key, value)
            for name in ("kaggle", "kaggle_safe")
            for key, value in (
                ("distributed.world_size", 1),
                ("dataloader.num_workers", 2),
                ("data.micro_batch_size", 64),
                ("training.gradient_accumulation_steps", 2),
                ("distributed.mixed_precision", "fp16"),
                ("checkpoint.enabled", True),
            )
        ),
        ("kaggle_safe", "watchdog.limit", "8h30m"),
        ("kaggle_safe", "trainer.deterministic", True),
        ("kaggle_safe", "early_stopping.enabled", True),
        ("ci_fast", "distributed.world_size", 1),
        ("ci_fast", "data.micro_batch_size", 8),
        ("ci_fast", "training.gradient_accumulation_steps", 1),
        ("ci_fast", "checkpoint.enabled", False),
        ("ci_fast", "trainer.deterministic", True),
        *(
            (name, key, value)
            for name, promised in {
                "kaggle_2xt4": {
                    "distributed.world_size": 2,
                    "early_stopping.enabled": True,
                    "trainer.deterministic": True,
                },
                "multi_gpu": {
                    "distributed.world_size": "auto",
                    "distributed.static_graph": True,
                    "distributed.backend": "nccl",
                    "distributed.sync_batchnorm": True,
                    "distributed.bucket_cap_mb": 50,
                },
                "gpu": {
                    "distributed.world_size": "auto",
                    "distributed.strategy": "ddp",
                    "distributed.static_graph": False,
                },
                "ddp": {"distributed.world_size": 16, "distributed.num_nodes": 2, "distributed.timeout_s": 3600},
                "local_safe": {
                    "data.micro_batch_size": 8,
                    "dataloader.num_workers": 0,
                    "dataloader.pin_memory": False,
                    "dataloader.persistent_workers": False,
                    "checkpoint.every_n_epochs": 5,
                },
                "a100": {
                    "data.micro_batch_size": 64,
                    "dataloader.num_workers": 8,
                    "dataloader.pin_memory": True,
                    "dataloader.persistent_workers": True,
                    "trainer.compile": True,
                },
                "h100_bf16": {"distributed.mixed_precision": "bf16", "distributed.world_size": "auto"},
                "smoke": {"limits.max_train_batches": 20, "trainer.max_epochs": 1},
            }.items()
            for key, value in promised.items()
        ),
    ],
)
def test_a_profile_keeps_its_promise(name, key, value):
    config = compose(f"trainer={name}")
    assert config.profile == name and get(config, key) == value


def test_the_walls_leave_time():
    wall = {name: parse_duration(limit) for name in NAMES if (limit := compose(f"trainer={name}").watchdog.limit)}
    assert wall == {
        "kaggle": 9 * 3600,
        "kaggle_safe": 8.5 * 3600,
        "kaggle_2xt4": 8.5 * 3600,
        "ci_fast": 20 * 60,
        "smoke": 10 * 60,
    }


# what `auto` becomes


def machine(gpus: int = 0, name: str = "Tesla T4", capability: tuple = (7, 5), **changes):
    return replace(detect(environ={}), gpus=(Gpu(name, 15.0, capability),) * gpus, cores=8, **changes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "trainer=multi_gpu",
        "trainer=gpu",
        "trainer.devices=auto",
        "trainer.devices=-1",
        "distributed.world_size=auto",
        "trainer=h100_bf16",
    ],
)
@pytest.mark.parametrize("gpus", [0, 1, 2])
@pytest.mark.parametrize("platform", ["kaggle", "local"])
def test_all_gpus_are_all_gpus_once_env_has_been_looked_up(words, gpus, platform):
    found = machine(gpus, name=platform)
    config, reasons = resolve_env(compose(*words.split()), found)
    assert plan_processes(config, found).world_size == max(1, gpus) and "distributed.world_size" not in reasons
    assert config.run.dir != "auto" and config.distributed.timeout_s != "auto"


@pytest.mark.parametrize("gpus, capability, precision", [(2, (8, 0), "bf16"), (2, (7, 5), "fp16"), (0, (7, 5), "no")])
def test_precision_auto_is_what_the_gpus_do_well(gpus, capability, precision):
    found = machine(gpus, "NVIDIA A100-SXM4-40GB", capability)
    config, _ = resolve_env(compose("trainer.precision=auto"), found)
    assert config.distributed.mixed_precision == "auto"
    assert choose_precision(config.distributed.mixed_precision, found.gpus)[0] == precision


@pytest.mark.slow
def test_what_env_fills_in_is_what_its_own_files_set(here):
    (here / "train.yaml").write_text(
        "defaults:\n  - env: auto\n  - trainer: defaults\n  - _self_\n"
        "run:\n  dir: elsewhere\ndistributed:\n  backend: gloo\n  timeout_s: 7\n"
    )
    config, reasons = resolve_env(from_dict({}), machine(name="local", flavour=None))
    assert (config.run.dir, config.distributed.backend, config.distributed.timeout_s) == ("runs", "auto", 600)
    assert set(reasons) == {"run.dir", "dataloader.num_workers", "dataloader.pin_memory", "distributed.timeout_s"}
    (here / "profiles" / "env").mkdir(parents=True)
    (here / "profiles" / "env" / "local.yaml").write_text(
        "# mine\ndefaults: [cloud]\nrun:\n  dir: ${extra.base}/runs\ntrainer:\n  precision: bf16\n"
    )
    config, reasons = resolve_env(from_dict({"extra": {"base": "/disk"}}), machine(name="local", flavour=None))
    assert (config.run.dir, config.distributed.timeout_s) == ("/disk/runs", 1800)
    assert config.distributed.mixed_precision == "bf16"
    assert config.distributed.world_size == "auto" and "env/local" in reasons["distributed.mixed_precision"]
    (here / "profiles" / "env" / "local.yaml").write_text("dataloader:\n  num_workers: many\n")
    with pytest.raises(RequestError, match=r"num_workers=many.*This is in profiles/env/local.yaml."):
        resolve_env(from_dict({}), machine(name="local", flavour=None))


# the clock


@pytest.mark.parametrize("name", ["smoke", "ci_fast"])
def test_a_short_limit_counts_from_the_run(name):
    old = machine(session_start=time.time() - 7200, limit_s=None, limit_source="no limit")
    limit = time_limit(compose(f"trainer={name}"), old)
    assert not Budget(limit).should_stop() and "from the start of the run" in limit.reason
    check_time(compose(f"trainer={name}"), old)
    again = time_limit(compose(f"trainer={name}"), old, began=5.0)  # a restart does not begin anew
    assert again.session_start == 5.0 and again.limit_s == limit.limit_s
    own = replace(old, limit_s=7260.0, limit_source="SPECTRAKIT_TIME_LIMIT=2h1m")
    assert time_limit(compose(f"trainer={name}"), own).end == own.session_start + 7260  # never exceeded


@pytest.mark.parametrize(
    "words, limit_s, source, says",
    [
        ("watchdog.limit=1h", None, "", "watchdog.limit=1h counts from the session's start, and it is over"),
        ("watchdog.limit=1h", None, "", "watchdog.since=run"),
        ("watchdog.limit=2h1m", None, "", "are held back for the end"),
        ("trainer.max_epochs=3", 3600.0, "a session lasts an hour", "Set watchdog.limit if you know"),
        (
            "trainer=smoke",
            3600.0,
            "SPECTRAKIT_TIME_LIMIT=1h",
            "SPECTRAKIT_TIME_LIMIT=1h counts from the session's start",
        ),
        ("watchdog.limit=3s watchdog.since=run", None, "", "counts from the start of the run"),
    ],
)
def test_a_limit_that_is_over_is_refused_before_anything_is_trained(words, limit_s, source, says):
    old = machine(session_start=time.time() - 7200, session_start_source="a test", limit_s=limit_s, limit_source=source)
    with pytest.raises(RequestError) as caught:
        check_time(compose(*words.split()), old)
    said = str(caught.value)
    assert says in said and "2:00:00 old (a test)" in said and "start a new session" in said and "\n" not in said, said


@pytest.mark.parametrize("words", ["watchdog.limit=3h", "trainer=defaults", "trainer=kaggle_safe", "trainer=smoke"])
def test_a_limit_with_time_left_is_none_to_complain_of(words):
    check_time(compose(words), machine(session_start=time.time() - 7200, limit_s=None, limit_source=""))


def test_a_run_without_a_choice_is_that_of_defaults():
    assert diff(compose(), compose("trainer=defaults")) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_overrides_beat_the_profile_in_any_spelling_and_order(name):
    words = [
        f"trainer={name}",
        "data.batch_size=5",
        "trainer.accumulate_grad_batches=7",
        "trainer.max_epochs=3",
        "trainer.precision=bf16",
        "+limits.train_frac=0.25",
        "watchdog.limit=1h",
    ]
    wanted = {
        "data.micro_batch_size": 5,
        "training.gradient_accumulation_steps": 7,
        "trainer.max_epochs": 3,
        "distributed.mixed_precision": "bf16",
        "limits.train_frac": 0.25,
        "watchdog.limit": "1h",
    }
    config = compose(*words)
    assert {key: get(config, key) for key in wanted} == wanted
    assert compose(*words[::-1]) == config
    assert set(diff(compose(f"trainer={name}"), config)) <= set(wanted)  # and nothing else has moved


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_profile_survives_its_snapshot(name, tmp_path):
    config = compose(f"trainer={name}", "trainer.max_epochs=3")
    (tmp_path / "config.yaml").write_text(snapshot(config))
    again = compose(config=tmp_path / "config.yaml")
    assert again == config == from_dict(to_dict(config)) and sha256(again) == sha256(config)


def test_profiles_differ_in_what_they_compose():
    assert len({sha256(compose(f"trainer={name}")) for name in NAMES}) == len(NAMES)


@pytest.mark.parametrize("file", sorted(FOLDER.rglob("*.yaml")), ids=lambda file: file.stem)
def test_every_key_of_a_profile_is_explained_where_it_is_first_set(file):
    "A key that an included profile has explained needs no second comment; only `defaults:` lists have none."
    text = file.read_text(encoding="utf-8")
    assert "\t" not in text and re.match(r"(# @package _global_\n)?# \S", text)
    tree = yaml.safe_load(text)
    explained = set()
    for parent in tree.get("defaults") or []:
        if isinstance(parent, str) and parent != "_self_":
            explained |= commented(file.with_name(f"{parent}.yaml"))
    missing = set(leaves({k: v for k, v in tree.items() if k != "defaults"})) - commented(file) - explained
    assert not missing, f"{file.name}: no comment says what {', '.join(sorted(missing))} is for"


def leaves(tree: dict, prefix: str = "") -> list[str]:
    "Dotted keys of all values."
    return [
        leaf
        for key, value in tree.items()
        for leaf in (leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else [f"{prefix}{key}"])
    ]


def commented(file: Path) -> set[str]:
    "Dotted keys whose line ends in a comment, or stands below one that has no value; those of included profiles, too."
    found, above = set[str](), list[str]()
    for line in file.read_text(encoding="utf-8").splitlines():
        if match := re.match(r"( *)([\w-]+):(.*)", line):
            above = [*above[: len(match[1]) // 2], match[2]]
            if re.search(r" # \S", match[3]):
                found.add(".".join(above))
        elif (match := re.match(r"  - (\w+)$", line)) and above == ["defaults"] and match[1] != "_self_":
            found |= commented(file.with_name(f"{match[1]}.yaml"))
    return found


# profiles of one's own, and broken ones


def profile(folder: Path, text: str, name: str = "mine") -> Path:
    "A file profiles/trainer/NAME.yaml below `folder`."
    file = folder / "profiles" / "trainer" / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_a_profile_of_ones_own_builds_on_ours(here):
    profile(
        here, "# @package _global_\n# mine\ndefaults:\n  - kaggle\ndata:\n  batch_size: 48\ntask:\n  name: digits\n"
    )
    assert profiles()["trainer"] == sorted((*NAMES, "mine")) and profile_intent("mine") == "mine"
    config = compose("trainer=mine")
    assert config.profile == "mine" and config.task == {"name": "digits"}
    assert set(diff(config, compose("trainer=kaggle"))) == {"profile", "data.micro_batch_size", "task.name"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "head",
    [
        "# @package _global_\n# mine\n",
        "# mine\n# @package _global_\n",
        "# mine\n",
        "",
        "\n\n#@package _global_\n# mine\n",
    ],
    ids=repr,
)
def test_a_profile_of_ones_own_needs_no_header(here, head):
    profile(here, head + "defaults:\n  - kaggle\ntrainer:\n  max_epochs: 7\ndata:\n  batch_size: 48\n")
    config = compose("trainer=mine")
    assert set(diff(config, compose("trainer=kaggle"))) == {"profile", "trainer.max_epochs", "data.micro_batch_size"}
    assert profile_intent("mine") == ("mine" if "mine" in head else "")


@pytest.mark.parametrize("head", ["", "# @package trainer\n"])
def test_keys_of_the_group_alone_stay_in_the_group(here, head):
    profile(here, head + "max_epochs: 7\nprecision: bf16\n")
    config = compose("trainer=mine")
    assert config.trainer.max_epochs == 7 and config.distributed.mixed_precision == "bf16"


def test_a_group_of_ones_own_needs_no_header_either(here):
    file = here / "profiles" / "optimizer" / "fast.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("name: sgd\nlr: 0.5\n")
    (here / "profiles" / "optimizer" / "whole.yaml").write_text("optimizer:\n  lr: 0.25\nseed: 3\n")
    assert compose("optimizer=fast").optimizer.lr == 0.5 and compose("optimizer=fast").optimizer.name == "sgd"
    assert compose("optimizer=whole").optimizer.lr == 0.25 and compose("optimizer=whole").seed == 3


def test_a_profile_of_ones_own_goes_before_ours_of_the_same_name(here):
    profile(here, "# mine\ndata:\n  micro_batch_size: 5\n", "kaggle")
    assert compose("trainer=kaggle").data.micro_batch_size == 5 and profile_intent("kaggle") == "mine"
    assert compose("trainer=kaggle_safe").data.micro_batch_size == 5  # which builds on it


def test_the_upper_file_wins_whatever_its_words(here):
    profile(here, "trainer:\n  accumulate_grad_batches: 4\n  precision: 32\n  epochs: 9\n", "base")
    profile(
        here,
        "defaults: [base]\ntraining:\n  gradient_accumulation_steps: 8\n"
        "distributed:\n  mixed_precision: bf16\ntrainer:\n  max_epochs: 7\n",
    )
    config = compose("trainer=mine")
    assert config.training.gradient_accumulation_steps == 8 and config.distributed.mixed_precision == "bf16"
    assert config.trainer.max_epochs == 7 and compose("trainer=base").distributed.mixed_precision == "no"
    (here / "train.yaml").write_text(
        "defaults:\n  - trainer: base\n  - _self_\ntrainer:\n  max_epochs: 5\n"
        "training:\n  gradient_accumulation_steps: 2\n"
    )
    assert compose().trainer.max_epochs == 5 and compose().training.gradient_accumulation_steps == 2
    (here / "train.yaml").write_text("defaults:\n  - _self_\n  - trainer: base\ntrainer:\n  max_epochs: 5\n")
    assert compose().trainer.max_epochs == 9  # as its list says


@pytest.mark.slow
@pytest.mark.parametrize(
    "text, size, nodes",
    [
        ("trainer:\n  num_nodes: 4\n", 32, 4),
        ("distributed:\n  num_nodes: 4\n", 32, 4),
        ("trainer:\n  devices: 3\n", 6, 2),
        ("trainer:\n  devices: 3\n  num_nodes: 5\n", 15, 5),
        ("distributed:\n  num_nodes: 4\n  world_size: 8\n", 8, 4),
    ],
)
def test_machines_and_devices_in_a_file_count_as_on_the_command_line(here, text, size, nodes):
    profile(here, "defaults: [ddp]\n" + text)
    config = compose("trainer=mine")
    assert (config.distributed.world_size, config.distributed.num_nodes) == (size, nodes)


def test_a_typed_policy_beats_every_file(here):
    profile(here, "trainer:\n  accumulate_grad_batches: 8\nval_loader:\n  accumulate_grad_batches: 3\n")
    assert compose("trainer=mine").training.gradient_accumulation_steps == 8
    assert compose("trainer=mine").eval.gradient_accumulation_steps == 3
    assert compose("trainer=mine", "local/accumulate_grad_batches=high").training.gradient_accumulation_steps == 4
    config = compose("trainer=mine", "local/accumulate_grad_batches@val_loader=high")
    assert config.eval.gradient_accumulation_steps == 4
    (here / "train.yaml").write_text("defaults:\n  - trainer: mine\n  - _self_\naccumulate_grad_batches: 6\n")
    assert compose().training.gradient_accumulation_steps == 6
    assert compose("local/accumulate_grad_batches=high").training.gradient_accumulation_steps == 4
    config = compose("local/accumulate_grad_batches=high", "accumulate_grad_batches=5")
    assert config.training.gradient_accumulation_steps == 5


@pytest.mark.parametrize("policy, steps", [("high", 4), (None, 1)])
def test_the_steps_may_point_at_the_policy(here, policy, steps):
    listed = f"  - local/accumulate_grad_batches: {policy}\n" if policy else ""
    (here / "train.yaml").write_text(
        f"defaults:\n{listed}  - trainer: defaults\n  - _self_\n"
        "training:\n  gradient_accumulation_steps: ${accumulate_grad_batches}\n"
        "eval:\n  gradient_accumulation_steps: ${val_loader.accumulate_grad_batches}\n"
    )
    assert compose().training.gradient_accumulation_steps == steps and compose().eval.gradient_accumulation_steps == 1
    assert compose("local/accumulate_grad_batches=train").training.gradient_accumulation_steps == 2


def test_what_a_train_yaml_tells_hydra_itself_is_left_alone(here):
    (here / "train.yaml").write_text(
        "defaults:\n  - trainer: kaggle\n  - _self_\nhydra:\n  run:\n    dir: x\nseed: 3\n"
    )
    assert compose().seed == 3 and compose().profile == "kaggle"


def test_several_folders_of_profiles(here, monkeypatch):
    for folder, seed in (("one", 1), ("two", 2)):
        (here / folder / "trainer").mkdir(parents=True)
        (here / folder / "trainer" / "both.yaml").write_text(f"seed: {seed}\n")
        (here / folder / "trainer" / f"{folder}.yaml").write_text("defaults: [both]\n")
    monkeypatch.setenv("SPECTRAKIT_PROFILES", os.pathsep.join([str(here / "one"), str(here / "two"), ""]))
    assert (compose("trainer=one").seed, compose("trainer=two").seed) == (1, 1)
    monkeypatch.setenv("SPECTRAKIT_PROFILES", os.pathsep.join([str(here / "one"), "nowhere"]))
    with pytest.raises(RequestError, match="SPECTRAKIT_PROFILES=nowhere is not a folder"):
        profiles()


def test_another_ending_is_hinted_at(here):
    profile(here, "seed: 4\n").rename(here / "profiles" / "trainer" / "mine.yml")
    hint = "profiles/trainer/mine.yml exists: rename it to mine.yaml."
    with pytest.raises(RequestError) as caught:
        compose("trainer=mine")
    assert str(caught.value).endswith(hint)
    profile(here, "defaults: [mine]\n", "other")
    with pytest.raises(RequestError) as caught:
        compose("trainer=other")
    assert str(caught.value).endswith(hint) and "other.yaml names trainer/mine" in str(caught.value)


def test_a_profile_from_windows_is_read(here):
    profile(here, "").write_bytes("# größer\r\ndefaults: [kaggle]\r\nseed: 4\r\n".encode("utf-8-sig"))
    assert compose("trainer=mine").seed == 4 and profiles()["trainer"].count("mine") == 1


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_profile_that_is_not_utf8_is_one_sentence(here, encoding):
    profile(here, "").write_bytes("# größer\nseed: 4\n".encode(encoding))
    for read in (lambda: compose("trainer=mine"), lambda: profile_intent("mine")):
        with pytest.raises(RequestError, match=r"^profiles/trainer/mine.yaml is not text in UTF-8.*Save it") as caught:
            read()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "entry, says",
    [
        ("kagle", "Did you mean 'kaggle'"),
        ("/env: kagle", "Did you mean 'kaggle'"),
        ("/trainr: kaggle", "'trainer'"),
        ("trainer: kaggle", "write the name alone: '- kaggle'"),
        ("env: kaggle", "write a slash: '- /env: kaggle'"),
        ("override /env: kagle", "Did you mean 'kaggle'"),
        ("xyzzy", "There are: a100, ci_fast"),
    ],
)
def test_a_list_that_names_no_profile_is_one_sentence(here, entry, says):
    profile(here, f"defaults:\n  - {entry}\n")
    with pytest.raises(RequestError) as caught:
        compose("trainer=mine")
    said = str(caught.value)
    assert said.startswith("The list `defaults:` in profiles/trainer/mine.yaml names ") and says in said, said
    assert "\n" not in said and "search path" not in said.lower() and "provider" not in said


@pytest.mark.parametrize(
    "text",
    [
        "defaults: kaggle\n",
        "defaults: [5]\n",
        "defaults: [{1: x}]\n",
        "defaults: [mine]\n",
        "defaults: [{/env: kaggle, /trainer: x}]\n",
        "defaults: {trainer: kaggle}\n",
        "defaults: [{/trainer: kaggle}]\n",
    ],
)
def test_a_list_that_is_none_is_one_sentence(here, text):
    profile(here, text)
    with pytest.raises(RequestError, match="mine") as caught:
        compose("trainer=mine")
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text, says",
    [
        ("trainer:\n  max_epochs: many\n", "trainer.max_epochs=many"),
        ("max_epochs: 0\n", "trainer.max_epochs=0"),
        ("trainer:\n  precision: 17\n", "trainer.precision=17"),
        ("seed: ${nothing.there}\n", "nothing.there"),
        ("trainer:\n  max_epoch: 3\n", "'trainer.max_epoch'"),
        ("data: 5\n", "'data'"),
        ("task:\n  name: 5\n", "task="),
    ],
)
def test_a_wrong_value_names_the_file_that_it_stands_in(here, text, says):
    profile(here, text, "base")
    profile(here, "defaults: [base]\nextra:\n  n: 1\n", "mine")
    with pytest.raises(RequestError) as caught:
        compose("trainer=mine")
    said = str(caught.value)
    assert says in said and said.endswith("This is in profiles/trainer/base.yaml.") and "\n" not in said, said
    with pytest.raises(RequestError) as caught:
        compose("trainer=kaggle", "trainer.max_epochs=0")
    assert "stands in" not in str(caught.value)  # it was typed


@pytest.mark.parametrize(
    "text, words",
    [
        ("# @package _global_\ndata:\n\tmicro_batch_size: 8\n", ("mine.yaml", "line 3", "tab", "spaces")),
        (
            "# @package _global_\ndata:\n  micro_batch_size: 8\n  micro_batch_size: 9\n",
            ("mine.yaml", "duplicate key", "micro_batch_size", "Keep one"),
        ),
        (
            "# @package _global_\ndata:\n  micro_batch_sise: 8\n",
            ("data.micro_batch_sise", "mine", "data.micro_batch_size"),
        ),
        ("# @package _global_\ntrainer:\n  max_epochs: many\n", ("trainer.max_epochs=many", "whole number")),
        ("# @package _global_\ntrainer:\n  max_epochs: 0\n", ("trainer.max_epochs=0", "from 1 up")),
        ("# @package _global_\nscheduler:\n  name: cosinus\n", ("scheduler.name=cosinus", "'cosine'")),
        ("# @package _global_\ndata: [1\n", ("mine.yaml",)),
        ("# @package _global_\ndefaults:\n  - kagle\n", ("kagle",)),
        ("# @package _global_\ndata: 8\n", ("data",)),
        ("- 1\n- 2\n", ("mine",)),
        ("# @package _global_\nseed: ${nothing.there}\n", ("nothing",)),
    ],
)
def test_a_broken_profile_is_one_clear_sentence(here, text, words):
    profile(here, text)
    with pytest.raises(RequestError) as caught:
        compose("trainer=mine")
    said = str(caught.value)
    assert all(word in said for word in words) and "\n" not in said, said


@pytest.mark.parametrize("broken", ["\tx: 1\n", "data:\n  seed: 1\n", "a: [\n"])
def test_a_broken_profile_does_not_stop_the_others(here, broken):
    profile(here, broken)
    assert compose("trainer=kaggle").data.micro_batch_size == 64


def test_a_file_with_a_list_of_profiles_composes_them(here):
    (here / "train.yaml").write_text(
        "defaults:\n  - trainer: kaggle_safe\n  - _self_\ntask: coffee\ntrainer:\n  max_epochs: 4\n"
    )
    config = compose(config=here / "train.yaml")
    assert (config.watchdog.limit, config.trainer.max_epochs, config.task) == ("8h30m", 4, {"name": "coffee"})
    assert compose("trainer=ci_fast", config=here / "train.yaml").data.micro_batch_size == 8


def test_a_yaml_file_runs_nothing(here):
    (here / "evil.yaml").write_text(f"seed: !!python/object/apply:os.mkdir ['{here}/ran']\n")
    for read in (lambda: compose(config=here / "evil.yaml"), lambda: load_yaml(here / "evil.yaml")):
        with pytest.raises(RequestError, match=r"evil.yaml"):
            read()
    profile(here, f"seed: !!python/object/apply:os.mkdir ['{here}/ran']\n")
    with pytest.raises(RequestError):
        compose("trainer=mine")
    assert not (here / "ran").exists()


def test_our_own_profiles_need_none_of_hydras_own_settings_and_a_file_of_the_users_may_name_them(here, monkeypatch):
    from hydra._internal.config_repository import ConfigRepository

    read: list[str] = []
    load = ConfigRepository.load_config

    def noted(repository, config_path):
        read.append(config_path)
        return load(repository, config_path)

    monkeypatch.setattr(ConfigRepository, "load_config", noted)
    monkeypatch.setattr("spectrakit.config.compose._composed", {})
    ours = compose("trainer=kaggle_safe")
    assert read == []
    with monkeypatch.context() as by_hydra:
        by_hydra.setattr("spectrakit.config.compose._compose_plainly", lambda *_: None)
        assert compose("trainer=kaggle_safe") == ours
    assert read and not [name for name in read if name.startswith("hydra/")]
    (here / "train.yaml").write_text(
        "defaults:\n- trainer: kaggle_safe\n- override hydra/job_logging: disabled\n- _self_\n"
    )
    assert compose().trainer == ours.trainer and "hydra/job_logging/disabled" in read


@pytest.mark.parametrize(
    ("group", "name", "text", "own", "kept"),
    [
        ("env", "local", "distributed:\n  timeout_s: 77\n", {"distributed.timeout_s": 77}, {"run.dir": "runs"}),
        ("env", "cloud", "dataloader: {num_workers: 1}\n", {"dataloader.num_workers": 1}, {"run.dir": "runs"}),
        (
            "trainer",
            "kaggle_safe",
            "accumulate_grad_batches: 4\n",
            {"training.gradient_accumulation_steps": 4},
            {"checkpoint.every_n_epochs": 5, "data.micro_batch_size": 64},
        ),
        ("hpo", "random", "search: {trials: 5}\n", {"search.trials": 5}, {"search.sampler": "random"}),
        (
            "local/accumulate_grad_batches",
            "high",
            "seed: 4\n",
            {"seed": 4},
            {"training.gradient_accumulation_steps": 4},
        ),
    ],
)
def test_a_file_of_the_user_s_is_laid_on_the_built_in_one_of_its_name(here, group, name, text, own, kept):
    ours = profile_settings(name, group)
    file = here / "profiles" / group / f"{name}.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    config = compose(f"{group}={name}")
    assert {key: get(config, key) for key in own} == own and {key: ours.get(key) for key in kept} == kept
    assert {key: get(config, key) for key in kept} == kept
    assert profile_settings(name, group).items() >= {**ours, **own}.items()
    file.write_text("defaults: []\n" + text)  # it says that it replaces ours
    assert profile_settings(name, group).keys() == own.keys()


def test_the_folder_of_runs_has_a_name_also_where_the_profile_of_the_platform_is_replaced(here):
    (here / "profiles" / "env").mkdir(parents=True)
    for name in ("local", "wsl2", "cloud", "kaggle", "colab"):
        (here / "profiles" / "env" / f"{name}.yaml").write_text("defaults: []\ndistributed:\n  timeout_s: 77\n")
    config, _ = resolve_env(compose(), detect())
    assert config.run.dir == "runs" and config.distributed.timeout_s == 77


def test_what_an_own_profile_lies_on_has_its_own_list(here):
    "kaggle_2xt4 builds on kaggle_safe, and that on kaggle: each may be the user's."
    (here / "profiles" / "trainer").mkdir(parents=True)
    (here / "profiles" / "trainer" / "kaggle.yaml").write_text("trainer:\n  max_epochs: 16\n")
    (here / "profiles" / "trainer" / "kaggle_safe.yaml").write_text("# @package _global_\n# mine\nseed: 5\n")
    config = compose("trainer=kaggle_2xt4")
    assert (config.trainer.max_epochs, config.seed, config.watchdog.limit) == (16, 5, "8h30m")
    assert profile_intent("kaggle") and profile_intent("kaggle_safe") == "mine"
