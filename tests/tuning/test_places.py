"Where runs train side by side: what is measured before it is decided, with two real processes."

import pytest

from helpers import task
from spectrakit.config.compose import compose
from spectrakit.tuning.parallel_runs import compare_processes

SHORT = ("trainer.accelerator=cpu", "preflight.seconds=0.2", "trainer.max_epochs=2", "data.batch_size=10")


@pytest.mark.slow
def test_both_ways_are_measured_and_processes_that_do_not_meet_are_no_choice(here):
    choice = compare_processes(task("Line"), compose(*SHORT), ("", ""), 2, short_s=0.0)
    assert choice.alone_s > 0 and choice.together_s > 0 and choice.world_size in (1, 2)  # by how busy the machine is
    (here / "late").touch()
    alone = compare_processes(task("Late"), compose(*SHORT, "launch.mode=torchrun"), ("", ""), 2, short_s=0.0)
    assert alone.world_size == 1 and alone.together_s is None and alone.alone_s > 0
    assert "rank 1 was killed" in alone.reason
