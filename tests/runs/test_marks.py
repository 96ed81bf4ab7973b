"The mark of a run holds for its weights, too: what is swapped below a copied mark is a stranger's."

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import spectrakit as sk
from helpers import ONE_PROCESS, run_cli, task
from spectrakit.api.actions import fit, predict, resume
from spectrakit.checkpoint.store import add_average, checkpoints, drop_averages, find_checkpoint, is_own, verify
from spectrakit.config.compose import compose
from spectrakit.launch.consent import trust
from spectrakit.runs.events import last_event
from spectrakit.runs.run_dir import is_foreign
from spectrakit.system.errors import RequestError
from spectrakit.system.files import file_sha256
from tasks import Line

pytestmark = pytest.mark.slow
WORDS = (
    *ONE_PROCESS,
    "trainer.max_epochs=2",
    "watchdog.limit=none",
)


def swap(run: Path, which: str = "model.safetensors") -> None:
    "Put other contents into each checkpoint, with the sizes and hashes that belong to them."
    for path in checkpoints(run / "checkpoints"):
        file = path / which
        if file.suffix == ".safetensors":
            save_file({name: torch.full_like(tensor, 7.0) for name, tensor in load_file(file).items()}, file)
        else:
            torch.save({"step": 3}, file)
        manifest = json.loads((path / "manifest.json").read_text())
        manifest["files"][which] = {
            **manifest["files"][which],
            "bytes": file.stat().st_size,
            "sha256": file_sha256(file),
        }
        (path / "manifest.json").write_text(json.dumps(manifest))
        assert verify(path) == []


def another_step(run: Path, which: str) -> None:
    "Give the newest checkpoint the manifest and the files of an earlier one."
    first, *_, newest = checkpoints(run / "checkpoints")
    shutil.rmtree(newest)
    shutil.copytree(first, newest)
    manifest = json.loads((newest / "manifest.json").read_text())
    (newest / "manifest.json").write_text(json.dumps({**manifest, "step": int(newest.name[5:])}))


def cut(run: Path) -> None:
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    (run / "events.jsonl").write_text("".join(line for line in lines if json.loads(line)["type"] != "end"))


@pytest.mark.parametrize(
    ("change", "which"),
    [(swap, "model.safetensors"), (swap, "state.pt"), (swap, "rank-00000.pt"), (another_step, "manifest.json")],
)
def test_swapped_files_under_a_copied_mark_need_consent(here, change, which):
    run = fit(Line(), compose(*WORDS), show=False)
    assert all(map(is_own, checkpoints(run.path / "checkpoints"))) and trust(run).made_here
    change(run.path, which)
    assert is_foreign(run.path) and not trust(run).made_here
    again = fit(Line(), compose(*WORDS), resume="auto", show=False)
    assert again.path != run.path and not is_foreign(again.path)
    shutil.rmtree(again.path)
    assert fit(Line(), compose(*WORDS), resume="auto", show=False, trust=True).path == run.path


def test_the_code_that_the_settings_name_is_not_imported_for_swapped_weights(here):
    assert run_cli(here, "train", task("Line"), *WORDS).returncode == 0
    (run,) = (here / "runs").iterdir()
    assert sk.open_run(run).load_model() is not None
    swap(run)
    for use in (lambda: sk.open_run(run).load_model(), lambda: predict(None, run), lambda: sk.check(None, run)):
        with pytest.raises(RequestError):
            use()
    with pytest.raises(RequestError, match="Nothing proves that"):
        predict(None, run)
    assert sk.open_run(run).load_model(trust=True) is not None


def test_a_run_that_goes_on_takes_its_checkpoints_over_and_a_refusal_does_not(here):
    run = fit(Line(), compose(*WORDS), show=False)
    swap(run.path)
    cut(run.path)
    before = {path.name: (path / "manifest.json").read_bytes() for path in checkpoints(run.path / "checkpoints")}
    with pytest.raises(RequestError, match="lr"):
        resume(run, Line(), "optimizer.lr=0.5", show=False)
    assert is_foreign(run.path)
    assert before == {p.name: (p / "manifest.json").read_bytes() for p in checkpoints(run.path / "checkpoints")}
    more = ("trainer.max_epochs=3", "resume.allow=[trainer.max_epochs]")
    done = resume(run, Line(), *more, show=False)
    assert done.status == "completed" and last_event(done.events, "restart") and not is_foreign(done.path)


def test_averages_are_marked_as_the_checkpoint_is_that_they_join(here):
    run = fit(Line(), compose(*WORDS), show=False)
    path, _ = find_checkpoint(run.path / "checkpoints")
    weights = load_file(path / "model.safetensors")
    for own in (True, False):
        add_average(path, weights, [1, 2])
        assert is_own(path) is own and verify(path) == []
        drop_averages(path.parent)
        assert is_own(path) is own and verify(path) == []
        swap(run.path)


@pytest.mark.parametrize("mode", ["inline", "auto"])
def test_where_no_key_can_be_kept_a_run_is_known_to_the_process_that_began_it(here, monkeypatch, mode):
    (here / "file").touch()
    monkeypatch.setenv("SPECTRAKIT_STATE", str(here / "file" / "state"))  # nothing can be written there
    monkeypatch.delenv("SPECTRAKIT_SESSION_KEY", raising=False)
    words = [word for word in WORDS if not word.startswith("launch.mode")]
    run = fit(Line(), compose(*words, f"launch.mode={mode}"), show=False)
    assert run.status == "completed" and not is_foreign(run.path)
    monkeypatch.setenv("SPECTRAKIT_SESSION_KEY", "00" * 32)  # another process
    assert is_foreign(run.path)
