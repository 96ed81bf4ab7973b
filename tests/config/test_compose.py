"Settings: that they are of their type and stay as they are, that a cut file is noticed, and what a wrong word is told."

import copy
import dataclasses
import functools
import json
import operator
import pickle
import subprocess
import sys
import types
import typing
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cloudpickle
import pytest
import yaml

from spectrakit.config.compose import compose, diff, from_dict, override, sha256, snapshot
from spectrakit.config.schema import Config, DistributedConfig, get, settings, to_dict, was_asked_for
from spectrakit.config.validation import ReadOnly
from spectrakit.system.errors import RequestError

pytestmark = pytest.mark.usefixtures("here")
OWN = ("task.name=coffee", "task.fold=2", "extra.note.deep=[1,2]", "distributed.env.NCCL_DEBUG=INFO")
BLOCKS = {
    "task": {"name": "coffee", "fold": 2},
    "extra": {"note": {"deep": [1, 2]}},
    "distributed.env": {"NCCL_DEBUG": "INFO"},
}


def refused(call, *words, **named) -> str:
    "The one line with which a request is refused."
    with pytest.raises(RequestError) as caught:
        call(*words, **named)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def replaced(config: Config, key: str, value) -> Config:
    "`dataclasses.replace` for a dotted key."
    block, _, name = key.rpartition(".")
    if not block:
        return dataclasses.replace(config, **{name: value})
    return dataclasses.replace(config, **{block: dataclasses.replace(getattr(config, block), **{name: value})})


# what stands in a Config stays

CHANGES = {
    "[]=": lambda d: d.__setitem__("x", 1),
    "del": lambda d: d.__delitem__(next(iter(d))),
    "clear": lambda d: d.clear(),
    "pop": lambda d: d.pop(next(iter(d))),
    "popitem": lambda d: d.popitem(),
    "update": lambda d: d.update(x=1),
    "setdefault": lambda d: d.setdefault("x", 1),
    "|=": lambda d: d.__ior__({"x": 1}),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("key", BLOCKS)
def test_an_open_block_cannot_be_changed(key, change):
    config = compose(*OWN)
    with pytest.raises(TypeError, match=r"cannot be changed in place.*override\(config"):
        CHANGES[change](get(config, key))
    with pytest.raises(TypeError):
        config.extra["note"]["deep"] = 3
    assert {key: get(config, key) for key in BLOCKS} == BLOCKS


@pytest.mark.parametrize(
    "make",
    [
        lambda c: c,
        copy.copy,
        copy.deepcopy,
        lambda c: pickle.loads(pickle.dumps(c)),
        dataclasses.replace,
        lambda c: cloudpickle.loads(cloudpickle.dumps(c)),
        lambda c: from_dict(to_dict(c)),
        override,
        lambda c: from_dict(json.loads(json.dumps(dataclasses.asdict(c)))),
        lambda c: from_dict(yaml.safe_load(yaml.safe_dump(dataclasses.asdict(c)))),
        lambda c: from_dict(yaml.safe_load(yaml.dump(dataclasses.asdict(c)))),
    ],
    ids=[
        "itself",
        "copy",
        "deepcopy",
        "pickle",
        "replace",
        "cloudpickle",
        "to_dict",
        "override",
        "json",
        "safe yaml",
        "yaml",
    ],
)
def test_a_config_is_carried_whole_and_stays_frozen(make):
    config = compose(*OWN)
    again = make(config)
    assert again == config and sha256(again) == sha256(config)
    assert {key: get(again, key) for key in BLOCKS} == BLOCKS
    for key in BLOCKS:
        with pytest.raises(TypeError):
            get(again, key)["x"] = 1


@pytest.mark.parametrize("key", settings())
def test_a_file_that_lacks_a_setting_is_read_at_the_default_of_the_schema(key):
    tree = to_dict(config := compose("trainer.max_epochs=7"))
    *blocks, name = key.split(".")
    del functools.reduce(operator.getitem, blocks, tree)[name]
    Path("settings.yaml").write_text(yaml.safe_dump(tree))
    for read in (from_dict(tree), compose(config="settings.yaml")):
        assert get(read, key) == settings()[key].default and diff(read, config).keys() <= {key}


@pytest.mark.parametrize("block", ["folds", "search", "diloco", "preflight"])
def test_a_file_that_lacks_a_whole_block_is_read_at_its_defaults(block):
    tree = to_dict(config := compose("trainer.max_epochs=7"))
    del tree[block]
    assert from_dict(tree) == config and sha256(from_dict(tree)) == sha256(config)


def test_an_open_block_is_a_dict_in_all_else():
    task = compose(*OWN).task
    assert isinstance(task, dict) and {**task, "fold": 3} == {"name": "coffee", "fold": 3} and task.get("none", 4) == 4
    assert type(dict(task)) is dict and type(task.copy()) is dict and type(task | {"x": 1}) is dict
    assert repr(task) == "{'name': 'coffee', 'fold': 2}" and yaml.safe_dump(task) == "fold: 2\nname: coffee\n"


def test_a_plain_form_is_a_copy_to_change():
    config = compose(*OWN)
    tree = to_dict(config)
    tree["task"]["fold"], tree["extra"]["note"]["deep"], tree["distributed"]["env"]["X"] = 9, 9, "9"
    assert {key: get(config, key) for key in BLOCKS} == BLOCKS
    mine = {"note": {"deep": [1]}}
    variables = {"NCCL_A": "1"}
    config = Config(extra=mine, distributed=DistributedConfig(env=variables))
    mine["note"]["deep"].append(2)
    mine["note"]["x"] = variables["B"] = 1
    assert config.extra == {"note": {"deep": [1]}} and config.distributed.env == {"NCCL_A": "1"}
    assert type(config.extra["note"]) is ReadOnly


# every value is of its type


def wrong_values(key: str) -> list:
    "Values that setting `key` must refuse, by its annotation."
    kind, checked = settings()[key].type, "check" in settings()[key].limits
    kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    values: list = [object(), b"x"] + ([] if type(None) in kinds or (checked and kind is typing.Any) else [None])
    if int in kinds:
        return [*values, "abc", True, [1], {}, 1.5, float("nan")]
    if float in kinds:
        return [*values, "abc", True, [1], {}, float("nan"), float("inf")]
    if bool in kinds:
        return [*values, "true", 1, 0]
    if str in kinds:
        return [*values, 5, True, ["a"]]
    if key in ("folds.columns", "run.metrics"):  # which take names
        return [*values, -5, " ", [5], ["a", None]]
    listed = [5] if key == "training.gradient_checkpointing" else ["a"]  # which takes names of modules
    return [*values, -5, "abc", listed]  # mappings, and settings with a check of their own


@pytest.mark.parametrize("key", settings())
def test_a_setting_refuses_what_is_not_of_its_type(key):
    for value in wrong_values(key):
        said = refused(replaced, Config(), key, value)
        assert said.startswith(key) and ("needs" in said or "there is no tracker" in said), said


def test_a_whole_number_does_for_a_number_and_null_where_there_may_be_none():
    assert replaced(Config(), "optimizer.lr", 1).optimizer.lr == 1
    for key, spec in settings().items():
        if isinstance(spec.type, types.UnionType):
            assert get(replaced(Config(), key, None), key) is None


@pytest.mark.parametrize("value", [5, None, {"max_epochs": 3}, DistributedConfig()])
def test_a_block_has_to_be_its_class(value):
    assert "TrainerConfig" in refused(dataclasses.replace, Config(), trainer=value)


@pytest.mark.parametrize("value", [{1, 2}, b"bytes", object(), 1j, [{"a": {3}}]])
def test_what_cannot_be_recorded_is_refused(value):
    assert "extra.mine" in (said := refused(Config, extra={"mine": value})) and "cannot be recorded" in said


@pytest.mark.parametrize(
    "word, right",
    [
        ("extra=5", "extra.note=5"),
        ("extra=null", "extra.note=5"),
        ("extra=[1]", "extra.note=5"),
        ("task=5", "task.name=coffee"),
        ("task=null", "task.name=coffee"),
        ("distributed.env=5", "distributed.env.NCCL_DEBUG=INFO"),
    ],
)
def test_one_value_for_a_block_of_keys_is_told_how_to_write_one(word, right):
    said = refused(compose, word)
    assert said.startswith(word) and f"such as {right}. More: `spectrakit explain " in said and compose(right)


@pytest.mark.parametrize(
    "word, proposed",
    [
        ("~seed", "seed=0"),
        ("~seed=3", "seed=0"),
        ("~trainer.max_steps", "trainer.max_steps=null"),
        ("~trainer.precision", "trainer.precision=auto"),
        ("~extra", "extra={}"),
        ("~tracking.names", "tracking.names=[csv]"),
    ],
)
def test_a_deletion_is_told_the_default(word, proposed):
    said = refused(compose, word)
    assert repr(word) in said and f"write the default {proposed}." in said
    key, config = proposed.partition("=")[0], compose(proposed)
    if key in settings():
        assert get(config, key) == settings()[key].default


@pytest.mark.parametrize("word", ["~trainer", "~trainer=kaggle", "~extra.note", "~task.name", "~unknown"])
def test_a_deletion_of_something_else_is_refused_without_a_proposal(word):
    said = refused(compose, word)
    assert repr(word) in said and "Remove it." in said and "null" not in said


@pytest.mark.parametrize("key", ["optimizer.lr", "launch.hang_floor_s", "seed", "trainer.max_steps"])
@pytest.mark.parametrize("digits", [400, 5000])
def test_a_number_too_large_for_the_machine_is_refused(key, digits):
    assert key in refused(compose, f"{key}={'9' * digits}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "word, says",
    [
        ("accumulation_steps=2", "Did you mean 'training.gradient_accumulation_steps'?"),
        ("save_steps=3", "Did you mean 'checkpoint.every_n_steps'?"),
        ("run_dir=x", "Did you mean 'run.dir'?"),
        ("launch.processes=2", "Did you mean 'distributed.world_size'?"),
        ("trainer.ema=0.9", "Did you mean 'training.ema_decay'?"),
        ("trainer.benchmark=true", "write trainer.deterministic=false"),
        ("trainer.enable_progress_bar=false", "write run.console=none"),
        ("distributed.env=NCCL", "it needs names and values of variables, such as distributed.env.NCCL_DEBUG=INFO."),
        ("distributed.env.NCCL_A.B=1", "the variable NCCL_A needs a single value, such as distributed.env.NCCL_A=1."),
        ("trainer=KAGGLE_SAFE", "Did you mean 'kaggle_safe' or 'kaggle'?"),
        ("OPTIMIZER.LR=3", "Did you mean 'optimizer.lr'"),
        ("optimizer.name=SGDW", "Did you mean 'sgd'"),
        ("trainer.precision=bf61", "Did you mean 'bf16'?"),
        ("distributed.world_size=aut", "Did you mean 'auto'?"),
        ("distributed.enabled=aut", "Did you mean 'auto'?"),
        ("trainer.deterministic=treu", "Did you mean 'true'?"),
        ("trainer.deterministic=flase", "Did you mean 'false'?"),
        ("trainer.strategy=ddpp", "Did you mean 'ddp'"),
        ("trainer.devices=0", "trainer.devices=0 is not possible: it needs 'auto' or a whole number from 1 up."),
        ("trainer.num_nodes=0", "trainer.num_nodes=0 is out of range"),
        ("data.batch_size=0", "data.batch_size=0 is out of range"),
        ("trainer.strategy=null", "trainer.strategy=null is not possible: it needs one of auto, ddp, fsdp, diloco."),
        ("watchdog.limit=0s", "watchdog.limit=0s is not possible: it needs a time above 0"),
        ("watchdog.since=start", "it needs one of session, run."),
        ("trainer.val_check_interval=100", "a number of optimizer steps is trainer.check_val_every_n_steps."),
        ("trainer.val_check_interval=0", "it needs a fraction of an epoch, such as 0.25"),
        ("warmup_ratio=1", "warmup_ratio=1 is out of range"),
        ("launch.threads=0", "it needs 'auto' or a whole number from 1 up"),
    ],
)
def test_what_people_type_by_mistake_is_told_what_they_meant(word, says):
    assert says in refused(compose, word)


# what was typed


def test_a_config_knows_what_was_typed_and_is_the_same_without_it(here):
    config = compose("trainer=kaggle", "trainer.epochs=10", "distributed.env.NCCL_A=1")
    assert config.typed == ["distributed.env", "trainer.max_epochs"]
    assert compose().typed == [] and Config().typed is None
    assert config == compose("trainer=kaggle", "distributed.env.NCCL_A=1") and "typed" not in snapshot(config)
    assert override(config, "seed=0").typed == ["distributed.env", "seed", "trainer.max_epochs"]
    assert dataclasses.replace(config, seed=3).typed == config.typed
    assert from_dict({**to_dict(config), "typed": config.typed}).typed == config.typed
    assert from_dict(to_dict(config)).typed is None
    (here / "my.yaml").write_text("trainer:\n  max_epochs: 10\n  max_steps: 3\n")
    assert compose(config="my.yaml").typed == ["trainer.max_steps"]  # a whole file says what is default, too


# a cut file


@pytest.mark.slow
def test_a_snapshot_that_was_cut_anywhere_is_refused(here):
    file, config = here / "config.yaml", compose("trainer=kaggle_safe", *OWN)
    text = snapshot(config)
    for length in {*range(0, len(text) - 1, 53), *range(60), *range(len(text) - 60, len(text) - 1)}:
        file.write_text(text[:length])
        said = refused(compose, config=file)
        assert "config.yaml" in said and "truncated" in said and "Copy it again" in said, (text[:length][-50:], said)
    for whole in (text, text[:-1], text + "\n\n", text.replace("\n", "\r\n"), "\ufeff" + text):
        file.write_bytes(whole.encode())
        assert compose(config=file) == config


def test_a_snapshot_may_be_edited_and_an_old_one_has_no_last_line(here):
    file, config = here / "config.yaml", compose("trainer=kaggle_safe", *OWN)
    text = snapshot(config)
    file.write_text(text.replace("max_epochs: 10\n", "max_epochs: 3\n").replace("seed: 0\n", ""))
    assert compose(config=file) == override(config, "trainer.max_epochs=3")
    first, *lines, _ = text.splitlines(keepends=True)
    file.write_text("".join([first.replace("snapshot of a run: ", ""), *lines]))
    assert compose(config=file) == config


@pytest.mark.parametrize(
    "text", ["seed: 3\n", "# my own\nseed: 3", "# snapshots are better\nseed: 3\n", "seed: 3\ntrainer:\n"]
)
def test_a_file_by_hand_may_be_as_short_as_it_likes(here, text):
    (here / "my.yaml").write_text(text)
    assert compose(config="my.yaml") == compose(config=here / "my.yaml") == Config(seed=3)
    assert compose("trainer.max_epochs=3", config="my.yaml").trainer.max_epochs == 3


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "{}\n", "null\n"])
def test_a_file_without_settings_is_refused(here, text):
    (here / "my.yaml").write_text(text)
    assert "my.yaml contains no settings" in refused(compose, config="my.yaml")


def test_a_wrong_value_in_a_file_names_the_file_and_a_typed_one_does_not(here):
    (here / "my.yaml").write_text("trainer:\n  max_epochs: 0\n")
    assert refused(compose, config="my.yaml").endswith(
        "from 1 up. More: `spectrakit explain trainer.max_epochs`. This is in my.yaml."
    )
    (here / "my.yaml").write_text("trainer:\n  max_epochs: 5\n")
    assert refused(compose, "optimizer.lr=0", config="my.yaml").endswith(
        "a number above 0. More: `spectrakit explain optimizer.lr`."
    )
    (here / "train.yaml").write_text("defaults:\n  - trainer: kaggle\n  - _self_\ntrainer:\n  max_epochs: 0\n")
    assert refused(compose).endswith("This is in train.yaml.")
    assert compose("trainer.max_epochs=2").trainer.max_epochs == 2  # what is typed beats it


@pytest.mark.parametrize("text", ["defaults:\nseed: 3\n", "defaults: []\nseed: 3\n"])
def test_an_empty_list_of_profiles_takes_the_schema_alone(here, text):
    (here / "train.yaml").write_text(text)
    assert dataclasses.replace(compose(), profile="defaults") == Config(seed=3)


# Hydra around it


def test_ones_own_hydra_is_left_alone(here):
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    (here / "conf").mkdir()
    (here / "conf" / "mine.yaml").write_text("a: 1\n")
    with initialize_config_dir(str(here / "conf"), version_base="1.3"):
        before = GlobalHydra.instance().hydra
        assert compose("trainer=ci_fast").profile == "ci_fast" and refused(compose, "trainer=none")
        assert GlobalHydra.instance().hydra is before and hydra_compose("mine").a == 1


@pytest.mark.slow
def test_threads_compose_each_their_own(here):
    folder = here / "profiles" / "trainer"
    folder.mkdir(parents=True)
    for n in range(4):
        (folder / f"wrong{n}.yaml").write_text(f"trainer:\n  max_epochs: -{n}\n")
    with ThreadPoolExecutor(4) as pool:
        said = list(pool.map(lambda n: refused(compose, f"trainer=wrong{n % 4}"), range(12)))
    assert all(f"max_epochs=-{n % 4} " in text or n % 4 == 0 for n, text in enumerate(said))
    assert all(text.endswith(f"This is in profiles/trainer/wrong{n % 4}.yaml.") for n, text in enumerate(said))


def test_a_module_that_was_loaded_twice_still_reads_profiles(here):
    "As %autoreload does it: Hydra keeps the class that it saw first."
    code = (
        "import importlib, spectrakit.config.compose as c; c.compose('trainer=kaggle_safe'); c = importlib.reload(c); "
        "print(c.compose('trainer=kaggle_safe').watchdog.limit)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=here)
    assert done.stdout.strip() == "8h30m", done.stderr


PRECISION = "distributed.mixed_precision"


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (("trainer=defaults",), False),
        (("trainer=kaggle_safe",), False),
        (("trainer=kaggle", "trainer.precision=16"), True),
        (("trainer=defaults", "distributed.fp16=true"), True),
    ],
)
def test_a_snapshot_tells_a_profile_from_a_person(tmp_path, words, asked):
    config, file = compose(*words), tmp_path / "config.yaml"
    file.write_text(snapshot(config))
    again = compose(config=file)
    assert was_asked_for(config, PRECISION) == was_asked_for(again, PRECISION) == asked
    assert snapshot(again) == file.read_text() and again.distributed.mixed_precision == "fp16"
    file.write_text(snapshot(config).replace("mixed_precision: fp16", "mixed_precision: bf16"))  # by hand
    assert was_asked_for(compose(config=file), PRECISION)
    file.write_text("distributed:\n  mixed_precision: fp16\n")  # a person's own file
    assert was_asked_for(compose(config=file), PRECISION)
