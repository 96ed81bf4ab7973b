"A run of any condition is shown as what it is, by each view; a picture that cannot be drawn ends no training."

import io
import shutil

import pytest

import spectrakit as sk
import spectrakit.api.run
import spectrakit.view.cell.live
from odd_runs import ODD, SCRIPT, odd_run, plain_run
from spectrakit.api.run import Run, summarize
from spectrakit.cli.main import main
from spectrakit.view.cell.live import LiveView, watch
from spectrakit.view.terminal import TextView
from tasks import Line

pytestmark = pytest.mark.slow  # pictures of runs are drawn

INLINE = ("launch.mode=inline", "trainer.accelerator=cpu", "data.batch_size=20", "trainer.max_epochs=1")


@pytest.fixture
def sent(monkeypatch) -> list[dict]:
    "What the live view sends to its cell."
    found: list[dict] = []

    class Sheet:
        _handle = None

        def show(self, text: str, **data) -> None:
            self._handle = self
            found.append(data)

        def clear(self) -> None:
            pass

    monkeypatch.setattr(spectrakit.view.cell.live, "Screen", Sheet)
    return found


@pytest.mark.parametrize("kind", ODD)
def test_a_run_of_any_condition_is_drawn(here, sent, kind):
    now = [0.0]
    view = LiveView(odd_run(here, kind), clock=lambda: now[0])
    for now[0] in (1.0, 100.0, 200.0):
        view.update()
    view.close()
    assert view.failure is None
    frames = [frame["text_html"] for frame in sent if frame.get("text_html")]
    assert frames and all("<script" not in frame and len(frame) < 200_000 for frame in frames)


@pytest.mark.parametrize("kind", ODD)
def test_a_run_of_any_condition_is_told_as_text(here, kind):
    path = odd_run(here, kind)
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    view = TextView(path, terminal, redraw=False, every_s=0)
    view.update()
    assert view.out is terminal
    terminal.seek(0)
    text = terminal.read()
    assert "\x1b" not in text and len(text) < 50_000
    if kind != "empty":
        assert text.startswith("run ")
    if kind in ("script", "signs", "facts"):
        assert text.splitlines()[-1].startswith(("<script>", "completed: "))  # all of it was told


@pytest.mark.parametrize("kind", ["huge", "script", "signs", "vast"])
def test_the_summary_of_an_odd_run_has_its_picture(here, kind):
    run = Run(odd_run(here, kind))
    summarize(run)
    assert (run.path / "curves.png").stat().st_size and (run.path / "summary.json").is_file()


class Formula(Line):
    "Its metric is named as no formula may be."

    def metrics(self, outputs, batch):
        return {"$\\x$": ((outputs - batch[1]).abs().sum(), len(outputs)), SCRIPT: (outputs.sum(), len(outputs))}


def test_a_metric_of_any_name_ends_no_run(here):
    run = sk.fit(Formula(), sk.compose(*INLINE, "run.name=formula"), show=False)
    assert run.status == "completed" and "val_$\\x$" in run.metrics and (run.path / "curves.png").is_file()
    assert "<script" not in sk.report(run).read_text()


def test_a_picture_that_cannot_be_drawn_ends_no_run(here, monkeypatch, capsys):
    def broken(*_):
        raise ImportError("numpy.core.multiarray failed to import")

    monkeypatch.setattr(spectrakit.api.run, "plot_curves", broken)
    run = sk.fit(Line(), sk.compose(*INLINE, "run.name=bare"), show=False)
    assert (
        run.status == "completed"
        and run.load_model() is not None
        and "ImportError: numpy.core" in capsys.readouterr().err
    )


def test_a_run_in_a_shell_has_a_page_too(here, capsys):
    run = sk.fit(Line(), sk.compose(*INLINE, "run.name=paged"))
    page = (run.path / "dashboard.html").read_text()
    assert "<b>completed</b>" in page and "<circle" in page and 'equiv="refresh"' not in page
    assert "completed: " in capsys.readouterr().out  # and the text is there as before


def test_a_folder_that_vanishes_while_it_is_watched_is_told(here, monkeypatch, capsys):
    path, asked = plain_run(here / "gone"), []

    def held(folder):
        asked.append(folder)
        if len(asked) > 1:
            shutil.rmtree(folder)
        return len(asked) == 1

    monkeypatch.setattr(spectrakit.view.cell.live, "is_locked", held)
    watch(path, poll_s=0)
    assert "gone is not there any more" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [None, 7, ["runs"]])
def test_what_is_no_run_is_not_watched(wrong):
    with pytest.raises(sk.RequestError, match=r"is not a run\. Give a Run, its folder or its name"):
        watch(wrong)


def test_a_log_that_cannot_be_read_breaks_no_view(here, capsys):
    (here / "odd" / "events.jsonl").mkdir(parents=True)
    view = LiveView(here / "odd")
    view.update(), view.close()
    assert "cannot be drawn (IsADirectoryError" in capsys.readouterr().err


def test_a_command_writes_to_a_terminal_that_knows_few_letters(here, monkeypatch):
    plain_run(here / "few", train_samples=8, parameters=9, total_steps=20, steps_per_epoch=10)
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", terminal)
    for command in ("show", "watch"):
        assert main([command, "few"]) == 0
    terminal.seek(0)
    assert terminal.read().count("? accumulation ?") == 2


def test_a_message_does_not_steer_the_terminal(here, capsys):
    for command in ("show", "watch"):
        assert main([command, str(odd_run(here / command, "signs"))]) == 0
    told = capsys.readouterr().out
    assert told.count("broken �, �[2J and �") == 2 and "\x1b" not in told
