"Every profile: rank zero writes the checkpoints, any other rank writes nothing."

from dataclasses import fields

import pytest

from rank_tasks import Curve
from spectrakit.checkpoint.store import checkpoints
from spectrakit.config.compose import compose
from spectrakit.config.profile_files import profiles
from spectrakit.distributed.context import RunContext, create_run_context
from spectrakit.system.platforms.detect import detect
from spectrakit.train.loop import train_run
from spectrakit.train.state import Execution
from spectrakit.watchdog.time_budget import Budget, TimeLimit


class NotMain(RunContext):
    "The one process of a run, which takes itself for a rank that does not write."

    is_main = False

    def gather_on_main(self, value):
        "Return the results, which rank zero would send."
        return [value]


def as_rank(kind, folder, config):
    "Train in this process, as rank zero or as another one."
    folder.mkdir()
    context = create_run_context(config, detect(environ={}))
    context = kind(**{f.name: getattr(context, f.name) for f in fields(context)})
    return train_run(Curve(), config, Execution(context, folder, Budget(TimeLimit(None, 0.0, "none"))))


@pytest.mark.slow
@pytest.mark.parametrize("name", profiles()["trainer"])
def test_checkpoints_are_written_by_rank_zero_only(name, tmp_path):
    config = compose(
        f"trainer={name}",
        "trainer.accelerator=cpu",
        "trainer.max_steps=3",
        "data.micro_batch_size=8",
        "trainer.compile=false",
        "dataloader.num_workers=0",
        "trainer.log_every_n_steps=1",
        "trainer.log_min_seconds=0",
    )
    assert (
        as_rank(RunContext, tmp_path / "zero", config)[0]
        == as_rank(NotMain, tmp_path / "one", config)[0]
        == "completed"
    )
    assert bool(checkpoints(tmp_path / "zero" / "checkpoints")) == config.checkpoint.enabled
    assert (tmp_path / "zero" / "events.jsonl").is_file()
    assert list((tmp_path / "one").iterdir()) == []
