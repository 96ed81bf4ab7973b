"""The live view in real kernels, today's and Colab's: what it sends, how much, into which cell, and what is left; and a
batch run's notebook.
"""

import base64
import json
import re
import subprocess
import sys
import time

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

import helpers
from lab import write_notebook
from notebook_kernels import BEGIN, Cell
from notebooks import executed
from spectrakit.api.run import open_run
from spectrakit.checkpoint.store import find_checkpoint

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux is the home of the kernels"),
]

LIMIT_S, MESSAGES, BYTES = 3, 1000, 1_000_000  # jupyter_server drops output beyond so much a second, over three seconds


# today's kernel draws runs in test_browser.py, too
@pytest.mark.parametrize("kernel", [pytest.param("todays_kernel", marks=pytest.mark.long), "colabs_kernel"])
def test_the_view_of_a_run(kernel, request):
    notebook = request.getfixturevalue(kernel)
    notebook.run(BEGIN)
    known = set()
    for ranks in (1, 2):
        cell = a_run_is_drawn_while_it_goes_on(notebook, ranks)
        assert not known & displays(cell)  # a run has outputs of its own
        known |= displays(cell)
    cell = an_interrupt_leaves_the_end_in_its_cell(notebook)
    assert not known & displays(cell)
    if kernel == "colabs_kernel":
        the_buttons_are_heard(notebook)  # today's kernel hears them by a channel of their own: test_browser.py
    notebook.run("time.sleep(2)")
    assert notebook.strays == []


def a_run_is_drawn_while_it_goes_on(notebook, ranks) -> Cell:
    "It is held twice on the way: what comes until then cannot have come at its end."
    name, happens = f"of-{ranks}", {10: f"hold {ranks}-a", 20: f"hold {ranks}-b"}
    cell = notebook.send(
        f"run = fit(Tiny({happens}, rank={ranks - 1}), config('{name}', 'trainer.devices={ranks}', "
        f"'trainer.max_epochs={3 * ranks}'))"
    )
    # what is unchanged is not drawn again: the plots may have come just before it is seen that the run is held
    before = 0
    for held in ("a", "b"):
        notebook.until((notebook.folder / f"{ranks}-{held}").exists, "the run to be held")
        notebook.until(lambda n=before: any("<polyline" in text for _, text in cell.frames[n:]), "curves")
        notebook.until(
            lambda n=before: any(
                "progressbar" in text and ("samples/s", "GiB by rank")[ranks - 1] in text for _, text in cell.frames[n:]
            ),
            "figures in the header",
        )
        assert cell.reply is None
        before = len(cell.frames)
        (notebook.folder / f"go-{ranks}-{held}").touch()
    notebook.wait(cell)
    weigh(cell)
    ends_well(notebook, cell, name, "completed")
    return cell


def an_interrupt_leaves_the_end_in_its_cell(notebook) -> Cell:
    cell = notebook.send("run = fit(Tiny({'slow': True}), config('stopped', 'trainer.max_epochs=2000'))")
    notebook.until(lambda: any("<polyline" in text for _, text in cell.frames), "curves")
    pressed = time.monotonic()
    notebook.interrupt("group")
    notebook.wait(cell)
    print(f"from the interrupt to the end of the cell: {cell.replied_at - pressed:.2f} s")
    ends_well(notebook, cell, "stopped", "interrupted")
    return cell


def the_buttons_are_heard(notebook) -> None:
    cell = notebook.send(
        "run = fit(Tiny({'slow': True}), config('clicked', 'trainer.max_epochs=2000', 'checkpoint.every_n_steps=null'))"
    )
    notebook.until(lambda: any("<polyline" in text for _, text in cell.frames), "curves")
    run = run_of(notebook, "clicked")
    kept = find_checkpoint(run.path / "checkpoints")[0]
    notebook.click("Checkpoint now")
    notebook.until(lambda: find_checkpoint(run.path / "checkpoints")[0] != kept, "a checkpoint")
    assert run.status == "running" and cell.reply is None
    notebook.click("Stop")
    notebook.wait(cell)
    ends_well(notebook, cell, "clicked", "interrupted")


# what is looked at


COLD = "'launch.warm_worker=false'"  # where there is one run alone, no process need wait for the next
NO_COMMS = """
import comm, ipywidgets
def refused(*_, **__): raise RuntimeError("there are no comms here")
comm.create_comm = refused
"""
MIME = {"text/plain", "text/html", "image/png"}  # what any front end shows


@pytest.mark.long
def test_a_front_end_without_comms_is_shown_all_of_it(todays_kernel):
    "VS Code and Colab show the same bundles, each in its own way, and may show no widget at all."
    todays_kernel.run(BEGIN + NO_COMMS)
    cell = todays_kernel.send(f"run = fit(Tiny({{'slow': True}}), config('plain', 'trainer.max_epochs=1', {COLD}))")
    todays_kernel.wait(cell)
    ends_well(todays_kernel, cell, "plain", "completed")
    bundles = [bundle for _, bundle in shown(cell)]
    assert {heard.kind for heard in cell.heard} == {"display_data", "update_display_data"}
    assert all("text/plain" in bundle and set(bundle) <= MIME for bundle in bundles)
    assert all(isinstance(value, str) for bundle in bundles for value in bundle.values())
    told = [bundle["text/plain"] for bundle in bundles if "progressbar" in bundle.get("text/html", "")]
    assert re.match(r"plain-[\d-]+: (starting|preparing|training)", told[0]) and ": completed" in told[-1]
    (picture,) = (bundle for bundle in bundles if "image/png" in bundle)
    assert set(picture) == MIME and re.match(r"epoch +time +train loss +val_loss\n★ 1 ", picture["text/plain"])
    assert base64.b64decode(picture["image/png"]).startswith(b"\x89PNG\r\n\x1a\n")


def displays(cell) -> set[str]:
    return {heard.display for heard in cell.heard if heard.display}


def shown(cell) -> list[tuple[str, dict]]:
    "Type and bundle of all that a cell has displayed."
    return [(kind, json.loads(text)) for kind, text in cell.frames if kind in ("display_data", "update_display_data")]


def run_of(notebook, name):
    found = [path for path in (notebook.folder / "runs").glob(f"{name}-*") if path.name[len(name) + 1 :][:8].isdigit()]
    assert len(found) == 1, found
    return open_run(found[0])


def weigh(cell) -> None:
    "No more than a header a second, plots every other second (at the start each), nothing that a server would drop."
    mine = [heard for heard in cell.heard if heard.display]
    seconds = mine[-1].at - mine[0].at
    sizes = sorted(heard.size for heard in mine)
    print(f"{len(mine)} messages and {sum(sizes)} bytes in {seconds:.1f} s, the largest {sizes[-1]}")
    updates = [heard for heard in mine if heard.kind == "update_display_data"]
    assert (
        len(mine) - len(updates) == len(displays(cell)) <= 7
    )  # header, buttons, boxes, plots, pictures, prints, what is spoken: each shown once, and changed from then on
    assert 4 <= len(updates) <= 8 + 2 * seconds
    assert sizes[-2] < 64_000  # the largest one has the PNG
    for first in cell.heard:
        window = [heard.size for heard in cell.heard if 0 <= heard.at - first.at < LIMIT_S]
        assert len(window) < LIMIT_S * MESSAGES / 10 and sum(window) < LIMIT_S * BYTES / 4


def ends_well(notebook, cell, name, status) -> None:
    "The cell has returned, and holds the end of the run: header, curves with a table, and no button."
    assert cell.reply["status"] == "ok" and cell.errors == [] and cell.warned == "", cell
    assert run_of(notebook, name).status == status
    assert {heard.kind for heard in cell.heard} <= {"display_data", "update_display_data", "comm_msg"}
    last = {
        heard.display: bundle
        for heard, (_, bundle) in zip([h for h in cell.heard if h.display], shown(cell), strict=True)
    }
    final = [bundle for bundle in last.values() if bundle.get("text/plain")]
    rest = [bundle for bundle in last.values() if bundle not in final]
    known = ("how curves are drawn", "run.show()", "what was printed", "a few validation samples", 'role="status"')
    assert len(final) == 2 and all(any(words in bundle["text/html"] for words in known) for bundle in rest), last
    head, curves = sorted(final, key=lambda bundle: "image/png" in bundle)
    assert status in head["text/html"] and "progressbar" in head["text/html"] and "image/png" not in head
    assert (
        "<svg" in curves["text/html"]
        and ("<table" in curves["text/html"] or "no evaluation" in curves["text/html"])
        and "image/png" in curves
    )
    assert "widget-view" not in json.dumps(list(last.values())) and notebook.strays == []


# a batch run, as Kaggle makes it

BATCH = [
    BEGIN,
    "epochs = 1",
    "run = fit(Tiny({'slow': True}), config('batch', f'trainer.max_epochs={epochs}'))",
    "run.raise_for_status(); run.status",
]


@pytest.mark.long  # papermill runs its notebooks by nbclient
def test_nbclient_keeps_the_end_of_a_run(tmp_path):
    notebook = nbformat.read(write_notebook(tmp_path / "batch.ipynb", *BATCH), 4)
    run_by_a_program(notebook, tmp_path)
    kept_well(notebook, "completed")


def run_by_a_program(notebook, folder) -> None:
    options = {"timeout": 240, "startup_timeout": 240, "kernel_name": "python3"}
    executed(lambda: NotebookClient(notebook, **options, resources={"metadata": {"path": str(folder)}}))


FAILS = [
    BEGIN,
    f"run = fit(Tiny({{5: 'raise cat'}}, 0), config('batch', 'trainer.devices=1', {COLD}))",
    "went_on = run.status",
]


def test_a_failed_run_stops_the_notebook_only_where_nobody_reads_it(tmp_path, todays_kernel):
    for cell in FAILS:
        todays_kernel.wait(todays_kernel.send(cell), 240)
    assert todays_kernel.ask("went_on") == "failed"
    elsewhere = tmp_path / "elsewhere"  # what has gone wrong once in a folder goes well afterwards
    elsewhere.mkdir()
    notebook = nbformat.read(write_notebook(elsewhere / "program.ipynb", *FAILS), 4)
    with pytest.raises(CellExecutionError, match="no luck with cat"):
        run_by_a_program(notebook, elsewhere)
    assert [cell.execution_count for cell in notebook.cells] == [1, 2, None]
    error = next(output for output in notebook.cells[1].outputs if output.output_type == "error")
    assert error.ename == "RunFailed" and len(error.traceback) == 1  # the sentence and the own line


@pytest.mark.long
def test_papermill_keeps_the_end_of_a_run_and_says_whether_a_cell_failed(tmp_path):
    cells = [
        *BATCH[:2],
        *(
            cell.replace("Tiny({'slow': True})", "Tiny({5: 'raise cat'} if epochs == 2 else {'slow': True})")
            for cell in BATCH[2:]
        ),
    ]
    notebook = nbformat.read(write_notebook(tmp_path / "batch.ipynb", *cells), 4)
    notebook.cells[1].metadata["tags"] = ["parameters"]
    nbformat.write(notebook, tmp_path / "batch.ipynb")
    for epochs, status in ((3, "completed"), (2, "failed")):
        words = [
            "-m",
            "papermill",
            "batch.ipynb",
            f"{status}.ipynb",
            "-k",
            "python3",
            "-p",
            "epochs",
            str(epochs),
            "--log-output",
            "--no-progress-bar",
            "--start-timeout",
            "240",
        ]
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env={
                **helpers.clean_environ(),
                "KAGGLE_KERNEL_RUN_TYPE": "Batch",
                "SPECTRAKIT_SESSION_START": str(time.time()),
            },
            timeout=300,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert (done.returncode == 0) == (status == "completed"), done.stderr
        assert "batch-" in done.stderr and status in done.stderr  # the log of a batch run tells how it goes
        if status == "failed":
            assert "no luck with cat" in done.stderr
            stopped = next(
                cell
                for cell in nbformat.read(tmp_path / "failed.ipynb", 4).cells
                if any(output["output_type"] == "error" for output in cell.get("outputs", []))
            )
            assert stopped.source.startswith("run = fit")  # in a batch run the cell itself ends the notebook
            assert "why the run failed" in json.dumps(stopped.outputs)
        kept_well(nbformat.read(tmp_path / f"{status}.ipynb", 4), status)


def kept_well(notebook, status) -> None:
    "An executed notebook that is small, needs no widgets, and shows the end of its run."
    fit = next(cell for cell in notebook.cells if cell.source.startswith("run = fit"))
    html = "".join(output["data"].get("text/html", "") for output in fit.outputs if "data" in output)
    assert status in html and ("<table" in html or status == "failed") and "<svg" in html
    assert [set(output["data"]) for output in fit.outputs if "image/png" in output.get("data", {})] == [
        {"text/plain", "text/html", "image/png"}
    ]
    assert (
        len(json.dumps(fit.outputs)) < 300_000
        and "widgets" not in notebook.metadata
        and "widget-view" not in json.dumps(fit.outputs)
    )
