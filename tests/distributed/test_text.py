"""DiLoCo on the text that ships with Python, a short version of `bench/diloco.py`: seeds and threads are fixed, so that
nothing here depends on how fast a machine is.
"""

import importlib.util
import sys

import pytest
import torch

from helpers import TESTS
from spectrakit.forecast.link_cost import ring_bytes

pytestmark = pytest.mark.slow

STEPS, PREPARED, RATE = 250, 100, 4e-3


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("bench_diloco", TESTS.parent / "bench" / "diloco.py")
    module = sys.modules["bench_diloco"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield module
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def losses(bench):
    "By name of the row: (loss on held-out text, megabytes that a worker sends)."
    data = bench.Text()
    torch.manual_seed(0)
    model = bench.Transformer(data.size, 32, 1, None)  # from torch's own first weights ten rounds are enough to tell
    start = bench.train_row(bench.Row("start", 1, "ddp", RATE), data, model, PREPARED)
    rows = (
        bench.Row("mean alone", 2, "mean", RATE),
        bench.Row("diloco", 2, "diloco", RATE),
        bench.Row("diloco int8", 2, "diloco", RATE, form="int8"),
        bench.Row("diloco int4", 2, "diloco", RATE, form="int4"),
        bench.Row("one worker", 1, "ddp", RATE),
        bench.Row("lookahead", 1, "diloco", RATE),
    )
    found = {"start": (bench.valid_loss(start, data), 0.0)}
    for row in rows:
        line = bench.measure(row, data, start, STEPS)
        found[row.name] = line["loss"], line["mb"]
    found["numbers"] = sum(p.numel() for p in start.parameters()), 0.0
    return found


@pytest.mark.long  # rounds of lm: lm/test_language_model.py
def test_workers_that_meet_every_25_steps_learn(losses):
    print(losses)
    loss = {name: pair[0] for name, pair in losses.items()}
    assert loss["diloco"] < loss["mean alone"] < loss["start"]
    assert loss["diloco"] < loss["one worker"]  # what the other one has seen helps
    assert loss["lookahead"] < loss["one worker"]  # also alone


@pytest.mark.long  # compression: train/test_rounds.py
def test_few_bits_cost_nothing_that_can_be_told_and_bytes_are_as_counted(losses):
    loss = {name: pair[0] for name, pair in losses.items()}
    assert abs(loss["diloco int8"] / loss["diloco"] - 1) < 0.002
    assert abs(loss["diloco int4"] / loss["diloco"] - 1) < 0.01
    by_ddp = STEPS * ring_bytes(4 * int(loss["numbers"]), 2) / 1e6
    assert by_ddp / losses["diloco"][1] == pytest.approx(25, rel=1e-12)
    assert 96 < by_ddp / losses["diloco int8"][1] < 99 and 188 < by_ddp / losses["diloco int4"][1] < 195
