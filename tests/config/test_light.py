"What is read without Hydra and OmegaConf means what they make of it."

import itertools
import os
from pathlib import Path

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf

from spectrakit.config import aliases, compose, profile_files
from spectrakit.config.auto_settings import resolve_env
from spectrakit.config.profile_files import load_yaml, package_profiles, profiles
from spectrakit.runs.run_dir import runs_folder
from spectrakit.system.errors import RequestError
from spectrakit.system.platforms.detect import detect

pytestmark = pytest.mark.usefixtures("here")
POLICY = "local/accumulate_grad_batches"


def by_hydra(monkeypatch):
    "From now on every list, every override and every file is read by Hydra and OmegaConf."
    monkeypatch.setattr(compose, "_compose_plainly", lambda *_: None)
    monkeypatch.setattr(compose, "_without_a_merge", lambda tree: None)
    monkeypatch.setattr(aliases, "_parse_plain", lambda text: None)
    monkeypatch.setattr(profile_files, "_plain_container", lambda text: None)
    profile_files._container.cache_clear()
    compose._composed.clear()


def outcome(call, *given, **named):
    "What comes of it, or the sentence with which it is refused."
    try:
        return call(*given, **named)
    except RequestError as error:
        return f"refused: {error}"


CHOICES = [
    {},
    *({group: name} for group, names in profiles().items() for name in names),
    {"trainer": "kaggle_2xt4", "env": "kaggle", POLICY: "high"},
    {POLICY: "high", "trainer": "gpu"},
    {f"{POLICY}@val_loader": "high", f"{POLICY}@extra": "debug"},
    {POLICY: None, "env": None},
    {"hpo": None, "lm": "default"},
]


@pytest.mark.slow
def test_our_own_profiles_are_composed_alike():
    file = package_profiles() / "train.yaml"
    for chosen in CHOICES:
        plainly = compose._compose_plainly(file, load_yaml(file), chosen)
        assert plainly is not None and plainly == compose._compose_by_hydra(file, load_yaml(file), chosen), chosen


MINE = {  # files in a folder of the user's
    "trainer/mine.yaml": "defaults: [kaggle_safe]\ntrainer: {max_epochs: 7}\n",
    "trainer/above.yaml": "defaults: [_self_, mine]\ntrainer: {max_epochs: 8}\n",
    "trainer/both.yaml": "defaults: [kaggle, ci_fast]\noutput_dir: both\n",
    "trainer/inside.yaml": "max_epochs: 9\n",
    "trainer/packed.yaml": "# @package _global_.run\ndir: packed\n",
    "trainer/moved.yaml": "# @package run\ndir: moved\n",
    "trainer/other.yaml": "defaults: [{/env: kaggle}]\nseed: 3\n",
    "trainer/twice.yaml": "defaults: [mine, mine]\n",
    "trainer/round.yaml": "defaults: [round]\n",
    "trainer/gone.yaml": "defaults: [nowhere]\n",
    "trainer/broken.yaml": "seed: [1\n",
    "trainer/empty.yaml": "",
    "env/auto.yaml": "run: {dir: mine}\n",
    "env/local.yaml": "run: {dir: elsewhere}\n",
    "night/long.yaml": "run: {dir: night}\n",
}
LISTS = [
    "[]",
    "[_self_]",
    "[{trainer: mine}]",
    "[{trainer: mine}, _self_]",
    "[_self_, {trainer: above}, {env: local}]",
    f"[{{trainer: both}}, {{{POLICY}: high}}, {{{POLICY}@val_loader: val}}]",
    "[{night: long}, {trainer: mine}]",
    *(f"[{{trainer: {name}}}]" for name in ("inside", "packed", "moved", "other", "twice", "round", "gone", "broken")),
    "[{trainer: empty}]",
    "[{trainer: mine}, {trainer: kaggle}]",
    "[{trainer@run: inside}]",
    "[{/trainer: mine}]",
    "[{optional trainer: nowhere}]",
    "[{override hydra/job_logging: disabled}]",
    "[{trainer: [mine, kaggle]}]",
    "[{env: null}, {trainer: mine}]",
    "[mine]",
    "[_self_, _self_]",
    "null",
    "trainer",
]


@pytest.mark.slow
@pytest.mark.parametrize("listed", LISTS)
def test_a_list_of_ones_own_is_composed_alike(here, monkeypatch, listed):
    for name, text in MINE.items():
        Path("profiles", name).parent.mkdir(parents=True, exist_ok=True)
        Path("profiles", name).write_text(text)
    Path("train.yaml").write_text(f"defaults: {listed}\nseed: 5\noutput_dir: top\n")
    words = [(), ("trainer=above",), (f"{POLICY}=high", "env=kaggle"), ("night=long", "run.dir=typed")]
    light = [outcome(compose.compose, *each) for each in words]
    by_hydra(monkeypatch)
    assert light == [outcome(compose.compose, *each) for each in words]


def _ways():
    "Files, variables and where `run.dir` then lies: every layer that may set it."
    yield {}, {}, "runs"
    yield {"train.yaml": "defaults: [{env: auto}, {trainer: defaults}, _self_]\nrun: {dir: own}\n"}, {}, "own"
    yield {"train.yaml": "defaults: [{env: auto}, {trainer: defaults}, _self_]\noutput_dir: own\n"}, {}, "own"
    yield {"train.yaml": "defaults: [{env: kaggle}]\n"}, {}, "/kaggle/working/runs"
    yield {"train.yaml": "run: {dir: no list}\n"}, {}, "runs"
    yield {"profiles/env/local.yaml": "run: {dir: mine}\n"}, {}, "mine"
    yield {"profiles/env/auto.yaml": "run: {dir: mine}\n"}, {}, "mine"
    yield {"profiles/trainer/defaults.yaml": "run: {dir: mine}\n"}, {}, "mine"
    yield {"profiles/trainer/defaults.yaml": "run: {dir: '${extra.disk}/runs'}\nextra: {disk: d}\n"}, {}, "d/runs"
    yield {"other/env/local.yaml": "output_dir: other\n"}, {"SPECTRAKIT_PROFILES": "other"}, "other"
    yield {}, {"SPECTRAKIT_PROFILES": "nowhere"}, "refused"


@pytest.mark.slow
@pytest.mark.parametrize("files, variables, expected", list(_ways()))
def test_the_folder_of_runs_is_what_a_whole_composition_says(here, monkeypatch, files, variables, expected):
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    for name, value in variables.items():
        monkeypatch.setitem(os.environ, name, value)
    found = outcome(runs_folder)
    by_hydra(monkeypatch)
    whole = outcome(lambda: Path(resolve_env(compose.compose(), detect())[0].run.dir))
    assert found == whole and str(found).startswith(expected)


KEYS = ("seed", "+limits.train_frac", "++extra.note", "trainer", POLICY, "a.b-c", "1a", "a..b", "a/b.c", "~seed", "x@y")
VALUES = (
    *("1", "-1", "+1", "007", "1_000", "0x10", "9" * 40, "1.5", "-0.5", ".5", "1.", "1e3", "3e-4", "1E+5", "1e400"),
    *("true", "False", "null", "NULL", "nan", "inf", "-inf", "Infinity", "none", "on", "abc", "a_b", "kaggle-safe"),
    *("a b", " a", "a ", "'a b'", "[1,2]", "{a: 1}", "1,2", "8h30m", "9:00", "a.b", "a/b", "/spectra/runs", "../runs"),
    *("./runs", "a=b", "${seed}", "a:b", "x.1", "a..b", "-a", "a-", "é", "a\\b", "a$b", "a%b", "nan.x", "", "???", "-"),
)


def test_an_override_is_read_alike():
    plain = 0
    for key, value in itertools.product(KEYS, VALUES):
        word = f"{key}={value}"
        if (light := aliases._parse_plain(word)) is None:
            continue
        plain += 1
        try:
            whole = OverridesParser.create().parse_override(word)
        except HydraException:
            raise AssertionError(f"{word!r} is refused by Hydra") from None
        read = light.key_or_group, light.value(), type(light.value())
        assert read == (whole.key_or_group, whole.value(), type(whole.value())), word
        assert not whole.package and not whole.is_delete() and not whole.is_sweep_override(), word
    assert plain > 80


TEXTS = (
    *(f"a: {value}" for value in VALUES),
    *(
        "a: 2026-11-20",
        "a: 2026-11-20 10:00:00",
        "a: 1e-3",
        "a: -.inf",
        "a: .nan2",
        "a: 1_0",
        "a: 0o7",
        "a: 010",
        "a: ~",
    ),
    *("a: yes", "on: 1", "1: a", "null: 1", "a:\n  - 1\n  - b: [c, {d: 1.0}]", "a: |\n  two\n  lines", "a: 'it''s'"),
    *("a: !!str 1", "a: &x 1\nb: *x", "<<: {a: 1}", "a: {b: 1, b: 2}", "? [1, 2]\n: 3", "- 1", "text", "3", "null"),
    *(
        "a: 190:20:30",
        "a: 1:30.5",
        'a: "\\u00e9"',
        "a.b: 1",
        "a:\nb:\n",
        "# only",
        "a: \ufeff1",
        "a: [1, 2",
        "a:\n\t- 1",
    ),
)


@pytest.mark.parametrize("text", TEXTS)
def test_yaml_is_read_alike(text):
    light = profile_files._plain_container(text)
    if light is not None:
        assert repr(light) == repr(OmegaConf.to_container(OmegaConf.create(text), resolve=False))


def test_most_yaml_is_plain():
    assert sum(profile_files._plain_container(text) is not None for text in TEXTS) > 60
    assert profile_files._plain_container(yaml.safe_dump({"a": [1, {"b": None}]})) == {"a": [1, {"b": None}]}
    ours = [path.read_text() for path in package_profiles().rglob("*.yaml")]
    assert all(profile_files._plain_container(text) is not None for text in ours)
