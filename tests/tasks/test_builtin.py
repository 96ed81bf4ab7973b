"The built-in tasks: what they hold out, what they draw from what is left, and the sentence where the extra is missing."

import subprocess
import sys

import pytest

from helpers import clean_environ, run_cli

pytest.importorskip("chemotools", reason="the extra `demo` is not installed")

import numpy as np
import torch
from torch.utils.data import TensorDataset

from spectrakit.config.compose import compose
from spectrakit.launch.job import BUILT_IN, load_task, name_of
from spectrakit.system.errors import RequestError
from spectrakit.task.loss import check_loss
from spectrakit.task.task import check_task, provides
from spectrakit.tasks import spectra as example_data
from spectrakit.tasks.coffee import Coffee, coffee_inputs
from spectrakit.tasks.digits import Digits
from spectrakit.tasks.fermentation import Fermentation, fermentation_dataset
from spectrakit.tasks.spectra import (
    MINUTES_BETWEEN_SPECTRA,
    coffee_data,
    fermentation_data,
    nearest_spectrum,
    online_data,
    split,
)

pytestmark = pytest.mark.slow  # each process reads 17 MB of tables

TASKS = {
    "coffee": (Coffee, 1841, 60),
    "fermentation": (Fermentation, 410, 21),
    "digits": (Digits, 64, 1797),
}
TARGETS = {
    "coffee": lambda: coffee_data()[1],
    "fermentation": lambda: fermentation_data()[1],
    "digits": lambda: example_data.demo_package("sklearn.datasets").load_digits().target,
}
each_task = pytest.mark.parametrize("name", TASKS)
spectra_task = pytest.mark.parametrize("name, data", [("coffee", "coffee_data"), ("fermentation", "fermentation_data")])


def test_every_built_in_task_is_tested_here():
    elsewhere = {"table", "images", "lm"}  # tests of their own packages
    assert set(TASKS) | elsewhere == set(BUILT_IN) and not set(TASKS) & elsewhere


@each_task
def test_a_task_follows_the_protocol(name):
    task, config = load_task(name), compose()
    assert isinstance(task, TASKS[name][0]) and name_of(task) == name
    check_task(task, config)
    train, valid = task.datasets(config)
    assert type(train) is type(valid) is TensorDataset and train[0][0].shape == (TASKS[name][1],)
    model, batch = task.model(config), valid[:8]
    check_loss(task, task.loss(model, batch))
    with torch.no_grad():
        outputs = task.predict(model, batch)
    assert len(outputs) == len(batch[1]) and outputs.isfinite().all()
    found = task.metrics_all(outputs, batch[1]) if provides(task, "metrics_all") else task.metrics(outputs, batch)
    assert set(found) == {"rmse" if name == "fermentation" else "accuracy"}


@each_task
def test_the_folds_hold_out_each_sample_once_and_spread_the_targets(name):
    task, targets, samples = load_task(name), TARGETS[name](), TASKS[name][2]
    folds, seen = task.options["folds"], []
    for fold in range(folds):
        train, valid = split(task, compose(f"task.fold={fold}", "seed=5"), targets)
        assert not set(train) & set(valid) and len(train) + len(valid) == samples
        assert list(valid) == list(split(task, compose(f"task.fold={fold}"), targets)[1]), "the seed moved the split"
        seen += list(valid)
        if name == "fermentation":
            assert targets[valid].min() < 7 and targets[valid].max() > 30
        else:
            assert (abs(np.bincount(targets[valid]) - np.bincount(targets) / folds) < 1).all()
    assert sorted(seen) == list(range(samples))


@spectra_task
def test_what_is_held_out_leaves_no_trace_in_training(name, data, monkeypatch):
    task, config = load_task(name), compose("task.views=2")
    spectra, targets = getattr(example_data, data)()
    before, weights = task.datasets(config)[0].tensors, _weights(task, config)
    held_out = split(task, config, targets)[1]
    spoiled = spectra.copy()
    spoiled[held_out] = np.random.default_rng(0).random(spoiled[held_out].shape)
    monkeypatch.setattr(sys.modules[TASKS[name][0].__module__], data, lambda: (spoiled, targets))
    after = task.datasets(config)
    assert all(torch.equal(a, b) for a, b in zip(before, after[0].tensors, strict=False))
    assert all(torch.equal(a, b) for a, b in zip(weights, _weights(task, config), strict=False))
    assert not torch.equal(
        after[1].tensors[0],
        fermentation_dataset(spectra, targets)[held_out][0]
        if name == "fermentation"
        else coffee_inputs(spectra[held_out]),
    ), "the test did not reach the data"


def _weights(task, config) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return list(task.model(config).state_dict().values())


@spectra_task
def test_views_depend_on_the_seed_and_on_nothing_else(name, data):
    def drawn(seed):
        return load_task(name).datasets(compose(f"seed={seed}", "task.views=2"))[0].tensors[0]

    assert torch.equal(drawn(3), drawn(3)) and not torch.equal(drawn(3), drawn(4))


def test_with_nothing_held_out_all_samples_are_drawn_from():
    train, valid = Fermentation().datasets(compose("task.fold=-1", "task.views=3"))
    assert valid is None and len(train) == 63


def test_every_sample_of_the_test_set_has_the_spectrum_nearest_in_time():
    spectra, hours, glucose = online_data()
    times = np.arange(len(spectra)) * MINUTES_BETWEEN_SPECTRA / 60
    away = np.abs(times - hours[:, None])
    found = nearest_spectrum(hours, len(spectra))
    assert np.allclose(away[np.arange(34), found], away.min(axis=1)) and (np.diff(found) > 0).all()
    assert (spectra.std(axis=1) > 0).all(), "a spectrum without information is among the test data"
    test = Fermentation().test_dataset(compose())
    assert len(test) == 34 and np.allclose(test.tensors[1], glucose)
    table = Fermentation().submission(np.zeros(34))
    assert {key: len(column) for key, column in table.items()} == {"hours": 34, "glucose": 34}


@pytest.mark.parametrize(
    "request_, words",
    [
        ("task.fold=5", "task.fold=5"),
        ("task.folds=1", "from 2 to 60"),
        ("task.fold=half", "an integer from -1 to 4"),
        ("task.views=0", "from 1 to"),
        ("task.fold=true", "an integer from -1 to 4"),
    ],
)
def test_an_option_out_of_range_is_refused(request_, words):
    with pytest.raises(RequestError, match=words):
        Coffee().datasets(compose(request_))


@pytest.mark.parametrize("package", ["chemotools", "pandas"])
def test_without_the_extra_one_sentence_says_what_to_install(package):
    code = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {package!r}: raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
from spectrakit.tasks.demo import demo
from spectrakit.tasks.spectra import coffee_data
try: coffee_data()
except ImportError as error: print(error)
sys.exit(demo())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=clean_environ()
    )
    sentence, *again = done.stdout.splitlines()
    assert done.returncode == 2 and not done.stderr, done.stderr
    assert again == [sentence] and package in sentence and 'pip install "spectrakit-train[demo]"' in sentence


def test_the_command_line_refuses_a_task_whose_data_are_not_installed(tmp_path):
    hidden = tmp_path / "hidden" / "chemotools"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ModuleNotFoundError('no module', name='chemotools')\n")
    done = run_cli(tmp_path, "train", "coffee", env={"PYTHONPATH": str(hidden.parent)})
    assert (
        done.returncode == 2
        and 'pip install "spectrakit-train[demo]"' in done.stderr
        and "Traceback" not in done.stderr
    )
    assert not list((tmp_path / "runs").glob("*")), "a run folder was left behind"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_networks_are_as_good_as_the_readme_says():
    from spectrakit.tasks.demo import coffee_accuracy, fermentation_loo

    assert coffee_accuracy(seed=0) >= 0.95
    assert fermentation_loo(seed=0) <= 1.5
