"""The learning rate finder: the same on one process and on two, no trace of it, and an honest word where there is no
answer.
"""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import spectrakit as sk
import tasks
from helpers import TESTS, TORCHRUN, clean_environ, task, wait_for
from in_process import stopped_clock
from rank_tasks import Curve
from spectrakit.checkpoint.store import random_state
from spectrakit.cli.main import main
from spectrakit.config.compose import compose
from spectrakit.system.errors import RequestError
from spectrakit.task.task import Task
from spectrakit.tuning.lr_finder import find_lr
from tasks import Line

pytestmark = pytest.mark.usefixtures("here", "temporary")
slow = pytest.mark.slow
RANKS = f"{TESTS / 'rank_tasks.py'}:"


@pytest.fixture
def temporary(tmp_path_factory, monkeypatch):
    "A folder for temporary files of the test's own, in which nothing may be left."
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    names = [path.name for path in folder.iterdir() if path.name.startswith("spectrakit-")]
    assert not [name for name in names if not name.startswith("spectrakit-launchers-")] and len(names) < 2


def inline(*words: str):
    return compose(
        "local/accumulate_grad_batches=debug",
        "launch.mode=inline",
        "trainer.accelerator=cpu",
        "data.batch_size=64",
        *words,
    )


def child(*words: str):
    return compose("local/accumulate_grad_batches=debug", "trainer.accelerator=cpu", "data.batch_size=4", *words)


class Held(Task):
    "A model that is one object, with everything that training changes; and a task that counts."

    def __init__(self, spoil=lambda number, loss: loss):
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
        self.losses, self.spoil = 0, spoil

    def datasets(self, cfg):
        x = torch.randn(512, 3, generator=torch.Generator().manual_seed(3))
        return TensorDataset(x, x.sum(1, keepdim=True)), None

    def model(self, cfg):
        return self.net

    def loss(self, model, batch):
        self.losses += not tasks.in_sanity_check()
        random.random(), numpy.random.rand()
        return self.spoil(self.losses, nn.functional.mse_loss(model(batch[0]), batch[1]))


# the same as fit


@slow
@pytest.mark.parametrize("name", ["Curve", "Weighted"])
def test_two_processes_find_what_one_finds(name):
    "With the same effective batch, also where samples do not divide, and where samples have weights."
    one = find_lr(
        RANKS + name, child("accumulate_grad_batches=2", "trainer.gradient_clip_val=1.0"), highest=1e3, show=False
    )
    two = find_lr(RANKS + name, child("trainer.devices=2", "trainer.gradient_clip_val=1.0"), highest=1e3, show=False)
    assert (
        one.facts["world_size"],
        two.facts["world_size"],
        one.facts["effective_batch_size"],
        two.facts["effective_batch_size"],
    ) == (1, 2, 8, 8)
    assert (one.suggestion, one.lowest_loss) == (two.suggestion, two.lowest_loss) and len(one.points) == len(
        two.points
    ) > 50
    assert name == "Weighted" or 1e-5 < one.suggestion < one.lowest_loss
    assert all(
        a.lr == b.lr and a.loss == pytest.approx(b.loss, rel=1e-3)
        for a, b in zip(one.points[:60], two.points, strict=False)
    )


def test_a_sweep_sees_the_samples_in_the_order_of_a_run():
    "The first loss of a sweep, before any update, is the first one of a run."
    run = sk.fit(
        Line(),
        inline(
            "data.batch_size=8",
            "trainer.max_steps=1",
            "trainer.log_every_n_steps=1",
            "trainer.log_min_seconds=0",
            "checkpoint.enabled=false",
        ),
        show=False,
    )
    assert find_lr(Line(), inline("data.batch_size=8"), show=False).points[0].loss == next(
        e["loss"] for e in run.events if e["type"] == "step"
    )


def test_accumulation_is_exact():
    "Two micro batches of four are one of eight."
    four, eight = (
        find_lr(Curve(), inline(*words), show=False)
        for words in (("data.batch_size=4", "accumulate_grad_batches=2"), ("data.batch_size=8",))
    )
    assert four.facts["micro_batch_size"] == 4 and four.suggestion == eight.suggestion
    assert [p.loss for p in four.points[:60]] == pytest.approx([p.loss for p in eight.points[:60]], rel=1e-4)


# no trace


def bits(net: nn.Module) -> list:
    return [
        (k, v.dtype, v.tolist(), v.data_ptr())
        for k, v in (*net.state_dict().items(), *((n, p.grad) for n, p in net.named_parameters() if p.grad is not None))
    ]


@pytest.mark.parametrize(
    "words", [(), ("trainer.precision=bf16", "trainer.gradient_clip_val=0.5")], ids=["fp32", "bf16"]
)
@pytest.mark.parametrize("ending", ["whole", "error", "refused", "interrupt"])
def test_a_model_that_somebody_holds_is_as_it_was(here, words, ending):
    def spoil(number, loss):
        if number == 30 and ending == "error":
            raise ZeroDivisionError("as planned")
        if number == 0 and ending == "refused":
            return loss.detach()
        if number == 30 and ending == "interrupt":
            os.kill(os.getpid(), signal.SIGINT), os.kill(os.getpid(), signal.SIGINT)
        return loss

    held = Held(spoil)
    held.net(torch.randn(8, 3)).sum().backward()
    held.net.eval()
    held.net[4].train()
    held.net[0].bias.requires_grad_(False)

    def state():
        return (
            bits(held.net),
            [m.training for m in held.net.modules()],
            [sorted(vars(m)) for m in held.net.modules()],
            held.losses,
            str(random_state()),
        )

    before, forward = state(), held.net.forward
    if ending == "refused":
        with pytest.raises(RequestError, match="detach"):
            find_lr(held, inline(*words), show=False)
    elif ending == "interrupt":
        with pytest.raises(KeyboardInterrupt):
            find_lr(held, inline(*words), show=False)
    else:
        found = find_lr(held, inline(*words), show=False)
        assert found.status == {"whole": "completed", "error": "failed"}[ending]
    assert state() == before and held.net.forward == forward
    assert list(here.iterdir()) == []


def test_no_run_is_left_that_anything_finds(here):
    assert find_lr(Line(), inline("data.batch_size=8"), show=False).points
    assert sk.list_runs() == [] and not (here / "runs").exists()
    run = sk.fit(Line(), inline("data.batch_size=8", "trainer.max_steps=3"), resume="auto", show=False)
    assert (
        run.status == "completed"
        and [r.path for r in sk.list_runs()] == [run.path]
        and not any(e["type"] == "restart" for e in run.events)
    )


# where it ends


def test_it_stops_where_the_loss_breaks_out():
    held = Held()
    found = find_lr(held, inline(), highest=1e6, steps=150, show=False)
    assert (
        found.status == "completed"
        and 60 < len(found.points) < 140
        and found.suggestion < found.lowest_loss < found.points[-1].lr < 1e5
    )
    best = [min(p.smoothed for p in found.points[9 : i + 1]) for i in range(9, len(found.points))]
    assert [p.smoothed > 4 * b for p, b in zip(found.points[9:], best, strict=False)] == [False] * (len(best) - 1) + [
        True
    ]


@pytest.mark.parametrize(
    "spoil, arguments, words",
    [
        (
            lambda number, loss: loss * float("nan") if number > 0 else loss,
            {},
            ("became nan", "step 1 of 100", "before any update"),
        ),
        (
            lambda number, loss: loss * float("nan") if number > 5 else loss,
            {},
            ("5 losses are too few", "lowest=1e-10"),
        ),
        (
            lambda number, loss: loss * float("inf") if number > 30 else loss,
            {},
            ("became inf", "step 31", "without a fall before"),
        ),
        (lambda number, loss: loss * 0 + 1, {}, ("hardly changed from 1e-07 to 1", "highest=100", "requires_grad")),
        (lambda number, loss: loss, {"highest": 1e-6}, ("hardly changed from 1e-07 to 1e-06", "highest=0.0001")),
        (lambda number, loss: loss, {"lowest": 1e3, "highest": 1e8}, ("lowest=1",)),
    ],
    ids=["nan at once", "nan after five", "inf later", "flat", "too low", "too high"],
)
def test_where_there_is_no_answer_it_says_so(spoil, arguments, words):
    found = find_lr(Held(spoil), inline("optimizer.name=sgd"), show=False, **arguments)
    assert (
        found.suggestion is found.steepest is found.lowest_loss is found.override is None
        and found.status == "completed"
    )
    assert all(word in found.reason for word in words), found.reason
    assert "no learning rate suggested" in str(found) and found._repr_png_()[:4] == b"\x89PNG"


def test_a_fall_that_goes_on_at_the_highest_rate_is_told():
    found = find_lr(Held(), inline(), highest=1e-2, show=False)
    assert found.suggestion and "still falling" in found.reason and "highest=1" in found.reason


def test_losses_that_are_nothing_but_noise_are_called_so():
    found = find_lr(Held(lambda number, loss: loss + 12 * (number * 7919 % 13 / 13 - 0.5)), inline(), show=False)
    assert found.suggestion is None and "noise" in found.reason and "steps=500" in found.reason


def test_a_negative_loss_is_swept_as_any_other():
    found, usual = (
        find_lr(Held(spoil), inline(), highest=1e4, show=False)
        for spoil in (lambda number, loss: loss - 5, lambda number, loss: loss)
    )
    assert found.suggestion == usual.suggestion and len(found.points) < 100


@slow
def test_the_clock_ends_a_sweep(monkeypatch):
    now = stopped_clock(monkeypatch)

    class Slow(Held):
        def loss(self, model, batch):
            now[0] += 0.1
            return super().loss(model, batch)

    found = find_lr(Slow(), inline("watchdog.limit=6s", "watchdog.since=run"), show=False)
    assert (
        found.status == "out_of_time"
        and found.suggestion is None
        and 0 < len(found.points) < 100
        and "the time was up" in found.reason
    )
    with pytest.raises(RequestError, match="no time to train"):
        find_lr(Held(), inline("watchdog.limit=1s", "watchdog.since=run"), show=False)


# faults


@slow
def test_out_of_memory_halves_the_micro_batch_and_keeps_the_effective_one(capfd):
    class Large(Curve):
        def loss(self, model, batch):
            if len(batch[0]) > 4:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
            return super().loss(model, batch)

    found = find_lr(Large(), child("data.batch_size=8"))
    assert found.suggestion and (found.facts["micro_batch_size"], found.facts["effective_batch_size"]) == (4, 8)
    out = capfd.readouterr().out
    assert "the memory ran out with data.micro_batch_size=8" in out and "continuing with 4" in out and found.next in out

    class Hopeless(Curve):
        def loss(self, model, batch):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    found = find_lr(Hopeless(), child("data.batch_size=1"), show=False)
    assert (
        found.status == "failed"
        and "CUDA out of memory" in found.reason
        and "\n" not in found.reason
        and "raise torch.OutOfMemoryError" in found.details
    )


@slow
@pytest.mark.parametrize(
    "trouble, words",
    [("1 7 divide!", ("rank 1", "ZeroDivisionError")), ("1 7 kill!", ("SIGKILL", "ran out of memory"))],
    ids=["error", "killed"],
)
def test_a_rank_that_fails_ends_the_sweep_with_a_sentence(monkeypatch, trouble, words):
    monkeypatch.setenv("TINY_TROUBLE", trouble)
    found = find_lr(task("Troubled"), child("trainer.devices=2", "launch.max_restarts=0"), show=False)
    assert found.status == "failed" and found.suggestion is None and all(word in found.reason for word in words), (
        found.reason
    )
    assert "spectrakit-job" not in str(found)


@slow
def test_an_interrupt_ends_the_sweep_and_leaves_nothing(start_cli, tmp_path, temporary):
    process = start_cli(
        "find-lr",
        task("Line"),
        "trainer.accelerator=cpu",
        "data.batch_size=4",
        cwd=tmp_path,
        env={"TINY_HOLD": f"20:{tmp_path}", "TMPDIR": str(temporary)},
    )
    wait_for(lambda: (tmp_path / "held").exists() or process.poll() is not None, "the sweep to be held")
    os.killpg(process.pid, signal.SIGINT)
    wait_for(lambda: list(temporary.glob("spectrakit-job-*/STOP")), "the interrupt to be heard")
    (tmp_path / "go").touch()
    out, err = process.communicate(timeout=90)
    assert (process.returncode, err) == (130, "") and "a stop was requested" in out and not (tmp_path / "runs").exists()


@slow
def test_ranks_of_a_launcher_of_ones_own_all_learn_the_answer(tmp_path):
    "Each holds its model, and each has the same points."
    (tmp_path / "script.py").write_text(f"""
import sys
sys.path[:0] = {[str(Path(__file__).parent), str(TESTS)]!r}
import torch, torch.distributed as dist
import spectrakit as sk
from test_lr_finder import Held, bits
held = Held()
before = bits(held.net)
found = sk.find_lr(held, sk.compose("trainer.accelerator=cpu", "data.batch_size=4"), show=False)
told = [None, None]
dist.all_gather_object(told, (found.suggestion, found.points, bits(held.net) == before))
if dist.get_rank() == 0: print(told[0] == told[1], told[0][0] is not None, told[0][2])
""")
    done = subprocess.run(
        [
            sys.executable,
            *TORCHRUN,
            "script.py",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        env={**clean_environ(), "OMP_NUM_THREADS": "1"},
    )
    assert done.stdout == "True True True\n", done.stderr


# requests


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"lowest": 1, "highest": 1e-7}, ("lowest=1 and highest=1e-07", "Did you mean lowest=1e-07 and highest=1?")),
        ({"lowest": 0.1, "highest": 0.2}, ("factor of ten",)),
        ({"lowest": 0}, ("lowest=0", "above 0")),
        ({"lowest": -1e-3}, ("lowest=-0.001", "above 0")),
        ({"highest": float("nan")}, ("highest=nan", "above 0")),
        ({"highest": float("inf")}, ("highest=inf", "above 0")),
        ({"highest": "1"}, ("highest='1'", "number")),
        ({"highest": None}, ("highest=None", "number")),
        ({"steps": 10}, ("steps=10", "from 20")),
        ({"steps": 1e3}, ("steps=1000.0", "integer from 20 to 10000")),
        ({"steps": True}, ("steps=True", "integer from 20 to 10000")),
        ({"config": 3}, ("int", "config", "compose(")),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_wrong_arguments_are_refused_before_anything_starts(here, arguments, words):
    with pytest.raises(RequestError) as caught:
        find_lr(Held(), arguments.pop("config", inline()), show=False, **arguments)
    assert all(word in str(caught.value) for word in words) and "\n" not in str(caught.value), caught.value
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("wrong, words", [("cofee", "Did you mean 'coffee'?"), (Held, "Held()"), (3, "no `datasets`")])
def test_what_is_no_task_is_refused(wrong, words):
    with pytest.raises(RequestError) as caught:
        find_lr(wrong, inline(), show=False)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "name, word, said",
    [
        ("Line", "data.batch_size=41", "40 samples"),
        ("Line", "task.widht=3", "'width'"),
        ("NanTraining", "seed=1", "not finite"),
        ("LossIsVector", "seed=1", "scalar"),
        ("Frozen", "seed=1", "no trainable parameter"),
        ("OneDataset", "seed=1", "(train, valid)"),
    ],
)
def test_what_a_run_would_refuse_is_refused(here, name, word, said):
    with pytest.raises(RequestError) as caught:
        find_lr(
            getattr(tasks, name)(),
            compose("launch.mode=inline", "trainer.accelerator=cpu", "data.batch_size=8", word),
            show=False,
        )
    assert said in str(caught.value) and list(here.iterdir()) == []


# the command


@pytest.fixture
def call(capsys):
    "A function that runs a command in this process: (exit status, stdout, stderr)."

    def run(*words) -> tuple[int, str, str]:
        capsys.readouterr()
        return (main([str(word) for word in words]), *capsys.readouterr())

    return run


QUICK = ("launch.mode=inline", "trainer.accelerator=cpu", "data.batch_size=8")


@slow
def test_the_command_prints_the_suggestion_and_draws_it(here, call):
    status, out, err = call("find-lr", task("Line"), *QUICK, "--out", "lr.png", "--highest", "10")
    override = out.rpartition(" in a shell")[0].rpartition("or ")[2]
    assert (
        (status, err) == (0, "")
        and override.startswith("optimizer.lr=")
        and (here / "lr.png").read_bytes()[:4] == b"\x89PNG"
    )
    assert [path.name for path in here.iterdir()] == ["lr.png"]
    assert call("find-lr", task("Line"), *QUICK, "--quiet", "--highest", "10") == (0, override + "\n", "")
    status, out, err = call("find-lr", task("Line"), *QUICK, "--highest", "1e-6")
    assert (status, err) == (1, "") and "no learning rate suggested" in out
    assert call("find-lr", task("Line"), *QUICK, "--highest", "1e-6", "--quiet")[:2] == (1, "")
    status, out, err = call("find-lr", task("RaisesInLoss"), *QUICK)
    assert status == 1 and "ZeroDivisionError: in the seventh loss" in out and "Traceback" in err


@pytest.mark.parametrize(
    "words, said",
    [
        (("coffee", "lowest=1e-6"), "--lowest 1e-6"),
        ((), "No task was named"),
        (("cofee",), "Did you mean 'coffee'?"),
        (("coffee", "--out", "lr.gif"), "unknown ending"),
        (("coffee", "--out", "nowhere/lr.png"), "nowhere"),
        (("coffee", "--lowest", "2"), "factor of ten"),
        (("coffee", "--steps", "many"), "--steps"),
        (("coffee", "optimizer.rl=3"), "optimizer.lr"),
    ],
)
def test_a_wrong_command_gets_one_line(here, call, words, said):
    status, out, err = call("find-lr", *words)
    assert (status, out) == (2, "") and said in err and err.count("\n") == 1 and list(here.iterdir()) == []
