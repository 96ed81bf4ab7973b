"""The cheapest form of each fault that no other file makes. `make faults` plays them all, with 200 random kills and
many deadlines.

Killed and hanging ranks, errors on one rank, SIGINT: test_supervise.py; damaged files, a lock, a full disk:
test_run.py; a kernel that dies: test_notebook.py.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from faultlib import aimed, clocks, crashes, losses, matrix, promises, storage
from faultlib.harness import play
from faultlib.kills import Chain, random_kills

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes die with their kernel on Linux only"),
]

# Held to a limit by the clock: nothing else may run beside these. First what takes longest, which is mostly waiting.
IN_TIME = (
    clocks.a_limit_of_three_quarters_of_a_minute_and_a_hang,
    clocks.a_deadline_in_an_evaluation,
    clocks.a_deadline_in_a_save,
    clocks.the_clock_jumps_and_the_process_is_killed,
)
# The same promise in a form that those above stand for.
ALSO_IN_TIME = (clocks.a_limit_of_three_quarters_of_a_minute,)
FAST = (
    crashes.the_kernel_gets_sigterm,
    crashes.rank_1_gets_sigterm,
    crashes.an_exception_in_backward,
    crashes.an_exception_in_an_evaluation,
    crashes.a_loader_worker_is_killed,
    crashes.no_memory_in_backward_on_rank_1,
    crashes.two_processes_resume_one_run,
    aimed.kills_aimed_at_a_start_a_save_and_an_evaluation,
    losses.a_nan_on_rank_1_rolls_both_back,
    storage.a_disk_that_cannot_flush,
    storage.checkpoints_that_become_read_only,
    promises.the_code_of_the_task_is_edited,
    promises.it_is_stopped_before_the_first_step,
)
SEED = 20  # among ten kills one of the kernel, and one before training began


@pytest.fixture(scope="module")
def played(request, tmp_path_factory):
    "What the chosen tests wait for, by their names: it happens side by side."
    folder, asked = tmp_path_factory.mktemp("faults"), {item.name for item in request.session.items}
    tests = {
        **{f"test_it_returns_in_time_when[{one.__name__}]": one for one in (*IN_TIME, *ALSO_IN_TIME)},
        **{f"test_what_is_promised_holds_when[{one.__name__}]": one for one in FAST},
    }
    jobs = {name: (play, one, folder / one.__name__) for name, one in tests.items()}
    jobs = {"test_ten_random_kills_lose_nothing": (random_kills, 10, SEED, folder / "chains", 1), **jobs}
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setenv("TINY_FORKS", "yes")  # `make faults` starts fresh interpreters
        futures = {name: pool.submit(*job) for name, job in jobs.items() if name in asked}
        yield futures
        for future in futures.values():
            future.cancel()


def named(scenarios, *marks):
    "The parameters of a test, under the scenarios' names."
    return [pytest.param(one, id=one.__name__, marks=marks) for one in scenarios]


@pytest.mark.parametrize("scenario", [*named(IN_TIME), *named(ALSO_IN_TIME, pytest.mark.long)])
def test_it_returns_in_time_when(scenario, played, request):
    holds(played[request.node.name].result())


@pytest.mark.parametrize("scenario", named(FAST))
def test_what_is_promised_holds_when(scenario, played, request):
    holds(played[request.node.name].result())


def holds(row):
    if row.skipped:
        pytest.skip(row.skipped)
    assert row.broken == (), row


def test_ten_random_kills_lose_nothing(played, request):
    chains = played[request.node.name].result()  # a second one where the first run was done before its tenth kill
    assert [chain.broken for chain in chains if chain.broken] == [] and sum(c.total for c in chains) == 10, chains


def test_the_report_has_every_fault_and_no_place(tmp_path):
    def a_fault_that_breaks(p):
        "It has to hold."
        p.facts.update(status="failed", lost_steps=3)
        p.want(False, f"it did not hold in {p.folder}")

    rows = matrix.play_all([a_fault_that_breaks], tmp_path / "play", 1, lambda text: None)
    chain = Chain("one process", 7, {"training": 3}, in_a_save=1, steps_again=[4, 0, 2], broken=["the weights"])
    text = matrix.markdown(
        {
            "machine": "a machine",
            "matrix": {"date": "today", "seconds": 1.0, **matrix.facts_of_rows(rows)},
            "kills": {"date": "today", "seconds": 1.0, **matrix.facts_of_kills([chain], 7)},
            "aimed": {"date": "today", "seconds": 1.0, **matrix.facts_of_aimed(rows)},
            "deadlines": {"date": "today", "seconds": 1.0, "parallel": 1, "seed": 7, **matrix.facts_of_deadlines(rows)},
        }
    )
    assert (
        "| a fault that breaks | It has to hold. | 1 | failed | 3 |" in text
        and "- **a fault that breaks**: it did not hold in …" in text
    )
    assert (
        "0 aimed kills" in text
        and "3 random kills" in text
        and "- **one process, seed 7**: the weights" in text
        and str(tmp_path) not in text
    )
    assert len({one.__name__ for one in matrix.scenarios()}) == len(matrix.scenarios()) > 60
    assert {*FAST, *IN_TIME, *ALSO_IN_TIME} <= set(matrix.scenarios())
