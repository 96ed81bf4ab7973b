"B, K, W, B_eff and the effective learning rate are where people look: trackers, `show`, the report, `explain`."

from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import spectrakit as sk
from helpers import run_cli
from spectrakit import explain
from spectrakit.api.actions import fit
from spectrakit.config.compose import compose, override
from spectrakit.config.effective_batch import batch_facts, plan_batches
from spectrakit.runs.trackers.registry import TRACKERS
from spectrakit.runs.trackers.tracker import Tracker
from tasks import Line

PROFILES = Path(sk.__file__).parent / "profiles" / "trainer"
WORDS = ("launch.mode=inline", "trainer.accelerator=cpu", "data.micro_batch_size=4", "trainer.max_steps=3")
FIGURES = {"B": 4, "K": 3, "W": 1, "B_eff": 12, "lr_eff": pytest.approx(0.06)}


@pytest.fixture
def told(monkeypatch):
    "What each tracker is given beside the metrics, with fakes in place of all that can be chosen."
    told: dict[str, dict] = {}

    def fake(name):
        class Fake(Tracker):
            def open(self, context):
                self.inner = SimpleNamespace()

            def write_config(self, values):
                told[name] = dict(values)

            def log(self, values, step):
                pass

            def finish(self, failed=False):
                pass

        return Fake

    for name in TRACKERS:
        monkeypatch.setitem(TRACKERS, name, fake(name))
    return told


def test_a_run_tells_its_trackers_its_log_show_and_its_report(told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = "training.gradient_accumulation_steps=3", "optimizer.lr=0.02", f"tracking.names=[{','.join(TRACKERS)}]"
    run = fit(Line(), compose(*WORDS, *words), show=False)
    assert run.status == "completed", run.reason
    assert set(told) == set(TRACKERS)
    for values in told.values():
        assert {name: values[name] for name in FIGURES} == FIGURES
    shown = run_cli(tmp_path, "show", run.path).stdout
    assert "B 4, K 3, W 1, B_eff 12, lr_eff 0.06" in shown
    page = sk.report(run).read_text(encoding="utf-8")
    for title in ("micro batch B", "accumulation K", "processes W", "effective batch", "effective learning rate"):
        assert title in page


@pytest.mark.parametrize(("k", "world", "lr"), [(1, 1, 0.1), (4, 2, 0.01), (8, 3, 3e-4)])
def test_explain_has_the_same_figures_as_the_log(k, world, lr):
    words = f"training.gradient_accumulation_steps={k}", f"optimizer.lr={lr}", "data.micro_batch_size=5"
    config = compose(*words)
    rows = {row["what"]: row["value"] for row in explain(config, world_size=world).to_dict()["rows"]}
    facts = batch_facts(plan_batches(config, 1000, world), lr)
    assert rows["micro batch B"] == "5" and rows["accumulation K"] == str(k) and rows["processes W"] == str(world)
    assert rows["effective batch"] == str(5 * k * world) == str(facts["effective_batch_size"])
    assert float(rows["effective learning rate"]) == pytest.approx(lr * k * world) == facts["effective_lr"]


def written_in(name: str) -> dict:
    "What the file of a trainer profile sets, and the files that it builds on, by key."
    blocks = yaml.safe_load((PROFILES / f"{name}.yaml").read_text(encoding="utf-8"))
    found: dict = {}
    for base in blocks.pop("defaults", []):
        if isinstance(base, str) and base != "_self_":
            found |= written_in(base.rpartition("/")[2])
    rows = [(block, values) for block, values in blocks.items() if isinstance(values, dict)]
    return found | {f"{block}.{key}": value for block, values in rows for key, value in values.items()}


KEYS = {
    "micro batch B": "data.micro_batch_size",
    "accumulation K": "training.gradient_accumulation_steps",
    "learning rate": "optimizer.lr",
}


@pytest.mark.parametrize("profile", sorted(path.stem for path in PROFILES.glob("*.yaml")))
def test_a_profile_is_named_only_for_the_values_that_it_sets(profile):
    sets = written_in(profile)
    config = compose(f"trainer={profile}")
    world = config.distributed.world_size if isinstance(config.distributed.world_size, int) else 1
    rows = {row["what"]: row["why"] for row in explain(config, world_size=world).to_dict()["rows"]}
    for what, key in KEYS.items():
        assert ("by the profile" in rows[what]) == (key in sets), (what, rows[what])


@pytest.mark.parametrize("what", KEYS)
def test_no_profile_is_named_for_what_somebody_typed(what):
    config = override(compose("trainer=kaggle_safe"), f"{KEYS[what]}=3")
    (why,) = [row["why"] for row in explain(config, world_size=1).to_dict()["rows"] if row["what"] == what]
    assert "profile" not in why and "as asked for" in why
