"""The notebook as people use it: JupyterLab in headless Chromium, two ranks that train, a person who clicks, reloads
and saves.
"""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from helpers import wait_for
from lab import NOTEBOOK, PICTURES, Page, Server, write_notebook
from notebook_kernels import BEGIN
from spectrakit.api.run import open_run
from spectrakit.checkpoint.store import find_checkpoint, verify
from spectrakit.config.profile_files import profile_note
from spectrakit.runs.events import last_event

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the browser of a Linux distribution"),
]

ROOT = Path(__file__).resolve().parents[2]
TABLE, CURVES = "table:has(th:has-text('val_loss'))", "[role=group][aria-label^='curves']"
PNG = "img[src^='data:image/png']"
HEADER = "[role=group][aria-label='how the run stands']"


@pytest.fixture(scope="module")
def server(browser, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab") / "notebooks"
    folder.mkdir()
    with Server(folder) as started:
        yield started


@pytest.fixture(scope="module")
def notebook7(browser, tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebook7") / "notebooks"
    folder.mkdir()
    with Server(folder, "notebook") as started:
        yield started


@pytest.fixture
def either(request, app):
    "A server of the application with this name."
    return request.getfixturevalue({"jupyterlab": "server", "notebook": "notebook7"}[app])


@pytest.fixture
def light(browser, server):
    with Page(browser, server) as page:
        yield page


@pytest.fixture
def dark(browser, server):
    with Page(browser, server, dark=True) as page:
        yield page


RARELY = ("trainer.log_every_n_steps=100000", "trainer.check_val_every_n_epoch=1000", "checkpoint.every_n_epochs=1000")


def train(name, *words, warm=True) -> str:
    "A cell that trains for long. `warm`: whether a process waits for the next run of its kernel."
    words = ("trainer.max_epochs=2000", *words, "run.console=auto", f"launch.warm_worker={str(warm).lower()}")
    return f"run = fit(Tiny({{'slow': True}}), config({name!r}, *{words!r}))"


STORY = {  # cells of one notebook, which share a kernel and warm processes
    "begin": BEGIN,
    "ahead": train("ahead", "checkpoint.every_n_steps=null", *RARELY),
    "behind": train("behind"),
    "clicked": train("clicked", "checkpoint.every_n_steps=null"),
    "status": "run.status",
    "form": "import spectrakit as sk\nsk.ProfilePicker(samples=6400, task='coffee', file=None)",
    # a log point takes two seconds: there is no advice, which would be said, before fifty of them
    "heard": train("heard", "trainer.log_every_n_steps=40"),
}
AHEAD, BEHIND, CLICKED, STATUS, FORM, HEARD = range(1, len(STORY))


@pytest.fixture(scope="module")
def story(browser, server):
    "A page with the cells of STORY; the first one has been run."
    write_notebook(server.folder / "story.ipynb", *STORY.values())
    with Page(browser, server) as page:
        page.open("story.ipynb")
        page.run(0)
        yield page


def test_the_header_moves_between_log_points_and_two_stops_cancel_the_queued_run(story, server):
    story.page.evaluate(HEADERS, AHEAD)
    for cell in (AHEAD, BEHIND):
        story.run(cell)
    story.until("window.headers.filter(line => line.includes('to go')).length > 2", "the time left")
    lines = [(int(found[1]), line) for line in headers(story) if (found := re.search(r"step (\d+) of", line))]
    steps = [step for step, _ in lines if step]
    assert steps == sorted(steps) and len({*steps}) > 1, lines
    assert all("to go" in line for step, line in lines if step > steps[0]), lines  # from the second step on
    story.press_stop()
    story.says(AHEAD, "begins after 5 s, in which ■ cancels it")
    wait_for(lambda: "This run was queued while ■ stopped" in story.said(BEHIND), "the countdown")
    story.picture("queued", AHEAD)
    story.press_stop()
    story.until_idle()
    assert the_run(server, "ahead").status == "interrupted"
    assert not list((server.folder / "runs").glob("behind-*"))


@pytest.mark.long  # test_the_buttons_save_a_checkpoint_and_stop_the_run
def test_frames_arrive_while_two_ranks_train_and_the_stop_button_ends_the_run(light, browser, server):
    write_notebook(
        server.folder / "stopped.ipynb", BEGIN, train("stopped", warm=False), "run.status, run.best.step > 0"
    )
    light.open("stopped.ipynb")
    light.run_all()
    frames(light, 1, 1)
    light.watch(1)
    steps = frames(light, 1, 4)
    light.until(f"{step_of(1, HEADER)} >= {steps[1]}", "the header to go on")
    light.picture("training", 1)
    while_it_trained = light.seen()
    evaluated(light, 1)
    light.watch(1)
    light.press_stop()
    light.until_idle()
    at_the_end, run = light.seen(), the_run(server, "stopped")
    assert steps == sorted(set(steps)) and run.status == "interrupted"
    light.says(2, "('interrupted', True)")
    assert verify(find_checkpoint(run.path / "checkpoints")[0]) == []
    assert while_it_trained.texts > 4 and while_it_trained.blank == 0 and len(while_it_trained.heights) == 1, (
        while_it_trained
    )
    heights = (*while_it_trained.heights, *at_the_end.heights)
    assert at_the_end.blank == 0 and max(heights) - min(heights) <= 8, heights  # one height from start to end
    stays(light, 1)
    assert light.output(1).locator("input:visible").count() == 4
    light.picture("stopped", 1)
    saved = light.save("stopped.ipynb")
    assert all(output["output_type"] != "error" for cell in saved["cells"] for output in cell["outputs"])
    assert len(json.dumps(saved["cells"][1])) < 300_000 and "widgets" not in saved["metadata"]
    # and by somebody else, whose JupyterLab does not trust it
    saved["cells"].append({**saved["cells"][2], "id": "another", "source": "1"})
    (server.folder / "sent.ipynb").write_text(json.dumps(saved))
    with Page(browser, server, dark=True) as other:
        other.open("sent.ipynb")
        assert not other.trusted()
        stays(other, 1)
        assert other.output(1).locator("input:visible").count() == 0  # its boxes would do nothing
        other.says(2, "('interrupted', True)")
        other.picture("untrusted", 1)


def test_after_a_reload_the_run_is_watched_from_elsewhere_and_goes_on(light, server):
    write_notebook(server.folder / "reloaded.ipynb", BEGIN, train("reloaded", warm=False), "run.show(); run.status")
    write_notebook(
        server.folder / "watching.ipynb",
        "import spectrakit as sk\nsk.watch(sorted(__import__('pathlib').Path('runs').glob('reloaded-2*'))[-1])",
        "'free again'",
    )
    light.open("reloaded.ipynb")
    light.run_all()
    frames(light, 1, 1)
    light.output(1).get_by_role("link", name="dashboard.html").wait_for()
    light.save("reloaded.ipynb")
    light.reload()
    is_left_behind(light, 1, "reloaded")
    light.open("watching.ipynb")
    light.run_all()
    steps = frames(light, 0, 2)
    evaluated(light, 0)
    light.press_stop()
    light.until_idle()
    run = the_run(server, "reloaded")
    light.picture("watched", 0)
    assert run.status == "running"
    light.says(1, "'free again'")
    light.says(0, "continues by itself")
    assert "unfinished" not in light.said(0)
    stays(light, 0)
    light.open("reloaded.ipynb")
    light.press_stop()
    wait_for(lambda: run.status != "running", "the run to end")
    assert run.status == "interrupted" and last_event(run.events, "end")["step"] >= steps[-1]
    light.until_idle()
    light.run(2)  # what the reload has cut off is shown again
    light.until(
        f"!!document.querySelectorAll('.jp-Notebook .jp-Cell')[2].querySelector(\"{PNG}\")", "the run to be shown"
    )
    light.until_idle()  # the value of the last line comes after the picture
    stays(light, 2)
    light.says(2, "'interrupted'")
    assert light.said(2).endswith("'interrupted'")


def is_left_behind(page, cell, name) -> None:
    "A frame that nothing draws any more says so, and its link leads to the page that follows the run."
    frame = page.output(cell).get_by_role("group", name="how the run stands")
    assert re.search(r"as of \d\d:\d\d:\d\d", frame.inner_text()), frame.inner_text()
    page.page.evaluate("() => document.getAnimations().forEach(animation => animation.finish())")  # 30 s later
    frame.get_by_text(re.compile(r"^not drawn since \d\d:\d\d:\d\d$")).wait_for()
    page.picture("left-behind", cell)
    address = frame.get_by_role("link", name="dashboard.html").evaluate("link => link.href")
    followed = page.context.new_page()
    followed.goto(address)
    followed.get_by_role("heading", name=re.compile(f"{name}-")).wait_for()
    assert "step" in followed.get_by_role("group", name="how the run stands").inner_text()
    followed.close()


def test_the_buttons_save_a_checkpoint_and_stop_the_run(story, server):
    story.dress(True)
    for cell in (CLICKED, STATUS):
        story.run(cell)
    frames(story, CLICKED, 2)
    run = the_run(server, "clicked")
    kept = find_checkpoint(run.path / "checkpoints")[0]
    story.page.get_by_role("button", name="Checkpoint now").click()
    wait_for(lambda: find_checkpoint(run.path / "checkpoints")[0] != kept, "a checkpoint")
    story.page.get_by_role("button", name="Checkpoint now").wait_for()  # it can be pressed again
    assert run.status == "running"
    evaluated(story, CLICKED)
    story.picture("training", CLICKED)
    story.page.get_by_role("button", name="Stop").click()
    story.until_idle()
    assert run.status == "interrupted"
    story.says(STATUS, "'interrupted'")
    stays(story, CLICKED)
    story.picture("stopped", CLICKED)
    story.dress(False)


@pytest.mark.long  # the quickstart is picked by clicking, too
def test_a_profile_is_picked_by_clicking_and_stays_in_the_notebook(browser, server, dark):
    cells = (
        'import spectrakit as sk\npicker = sk.ProfilePicker("trainer.accelerator=cpu", samples=6400)\npicker',
        "picker.freeze()",
        "picker.config.profile",
    )
    write_notebook(server.folder / "picked.ipynb", *cells)
    dark.open("picked.ipynb")
    dark.run(0)
    picks(dark, 0, "kaggle_safe")
    dark.picture("picker", 0)
    dark.run(1)
    dark.until_idle()
    saved = dark.save("picked.ipynb")
    source = "".join(saved["cells"][1]["source"])
    assert source.startswith("picker.choose(") and "kaggle_safe" in source, source
    assert "widgets" not in saved["metadata"]
    # a new session needs no click, and somebody whose JupyterLab does not trust the notebook reads what was there
    saved["cells"].append({**saved["cells"][2], "id": "another", "source": "1", "outputs": []})
    (server.folder / "picked-copy.ipynb").write_text(json.dumps(saved))
    (server.folder / "picked.picked.yaml").unlink()
    with Page(browser, server) as other:
        other.open("picked-copy.ipynb")
        assert not other.trusted()
        other.says(0, "effective batch")
        other.picture("picker-untrusted", 0)
        other.run_all()
        other.until_idle()
        other.says(2, "'kaggle_safe'")
        other.output(0).locator("select").first.wait_for()  # the form is there again
        other.picture("picker", 0)


@pytest.mark.parametrize(
    "dark", [pytest.param(False, id="light", marks=pytest.mark.long), pytest.param(True, id="dark")]
)
def test_the_form_can_be_read_and_used_at_any_width(browser, server, dark):
    name, widths = f"form-{'dark' if dark else 'light'}", (1400, 420)
    forms = [  # each with a selection of its own
        f"sk.ProfilePicker(samples=6400, task='coffee', file='{name}-{width}.yaml')" for width in widths
    ]
    write_notebook(server.folder / f"{name}.ipynb", "import spectrakit as sk", *forms)
    with Page(browser, server, dark) as page:
        page.page.set_viewport_size({"width": 1400, "height": 1000})
        page.open(f"{name}.ipynb")
        page.run(0)
        for cell, width in enumerate(widths, 1):
            page.page.set_viewport_size({"width": width, "height": 1000})
            reads_and_takes_keys(page, cell, width)
        assert page.problems == []


def reads_and_takes_keys(page, cell, width) -> None:
    "Run the form in this cell, look at it in a window of this width, and choose and type by keyboard."
    page.run(cell)
    epochs = page.output(cell).locator(".sk-field", has_text="trainer.max_epochs").locator("input")
    epochs.wait_for()
    page.until_idle()  # all parts of the form are there
    page.picture(f"form-{width}", cell)
    page.settled()
    look = page.output(cell).locator(".sk-form").evaluate(FORM_LOOK)
    assert look["narrowest"] >= 190 and look["smallest"] >= 11 and look["outside"] == [], look
    opened_by_keyboard(page, cell)
    # by keyboard: from a card to the next, which is chosen, and to a field, in which one types
    page.until(
        "new Set([...document.querySelectorAll('.sk-cards input')].map(e => e.name)).size > 0 && "
        "![...document.querySelectorAll('.sk-cards input')].some(e => !e.name)",
        "names of the radio buttons",
    )
    page.output(cell).locator(".sk-cards input:checked").focus()
    page.page.keyboard.press("ArrowDown")  # the arrow keys stay in the group, and Tab leaves it
    page.output(cell).locator(".sk-form", has_text="trainer=kaggle_safe").wait_for()  # another profile
    page.page.keyboard.press("Tab")
    assert page.page.evaluate("() => !document.activeElement.closest('.sk-cards')")
    page.until_idle()  # the fields of that profile have arrived
    epochs.focus()
    assert page.page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.page.keyboard.type("x")
    page.until("document.activeElement.value.endsWith('x')", "the letter in the field")
    page.output(cell).locator("[role=alert]", has_text="is not possible").wait_for()
    page.output(cell).locator(".sk-go button:disabled", has_text="Train").wait_for()  # each widget has its messages


@pytest.mark.long
def test_on_a_page_without_a_clipboard_the_button_copies_or_marks_and_says_so(light, server):
    "As a page is that came over plain http from another machine."
    write_notebook(
        server.folder / "copied.ipynb", "import spectrakit as sk\nsk.ProfilePicker(task='coffee', file=None)"
    )
    light.page.add_init_script("Object.defineProperty(Navigator.prototype, 'clipboard', {get: () => undefined})")
    light.page.add_init_script(LABELS_STAY)
    light.open("copied.ipynb")
    light.run(0)
    light.until_idle()
    line, selected = "spectrakit train coffee trainer=defaults", "() => String(getSelection())"
    light.output(0).get_by_role("button", name="copy: in a shell").click()
    light.output(0).get_by_role("button", name="copied: in a shell").wait_for()
    epochs = light.output(0).locator(".sk-field", has_text="trainer.max_epochs").locator("input")
    epochs.fill("")
    epochs.press("Control+v")
    wait_for(lambda: epochs.input_value() == line, "what was copied in the field", 60)
    light.output(0).locator("[role=alert]", has_text="cannot be read").wait_for()
    light.until_idle()  # the kernel has answered what was typed
    light.page.evaluate("() => { document.execCommand = () => false }")
    light.output(0).get_by_role("button", name="copy: in Python").click()
    light.output(0).get_by_role("button", name="marked: press Ctrl-C: in Python").wait_for()
    assert light.page.evaluate(selected).startswith("sk.compose(") and light.problems == []


@pytest.mark.long
def test_a_click_on_train_shows_the_run_below_the_form_and_is_stopped_as_any_cell(light, server):
    words = 'sk.ProfilePicker("trainer.accelerator=cpu", "trainer.max_epochs=1000000", task="coffee", file=None)'
    write_notebook(
        server.folder / "train.ipynb", f"import spectrakit as sk\npicker = {words}\npicker", "str(picker.run)"
    )
    light.open("train.ipynb")
    light.run(0)
    light.output(0).locator("button", has_text="Train").click()
    frames(light, 0, 2)
    light.picture("trained-by-a-click", 0)
    light.press_stop()
    light.output(0).locator(".sk-go", has_text="interrupted").wait_for()
    light.run(1)
    light.until_idle()
    light.says(1, ": interrupted")
    assert light.problems == []


@pytest.mark.long
def test_predictions_and_the_run_before_have_their_room_from_the_start(light, server):
    words = (
        "'trainer.accelerator=cpu', 'trainer.max_epochs=4', 'trainer.log_every_n_steps=2', 'trainer.log_min_seconds=0'"
    )
    first = f"import spectrakit as sk\nrun = sk.fit('coffee', {words}, 'run.dir=ghosts')"
    write_notebook(server.folder / "ghost.ipynb", first, f"sk.fit('coffee', {words}, 'seed=1', 'run.dir=ghosts');")
    light.open("ghost.ipynb")
    for cell in (0, 1):
        light.run(cell)
        light.output(cell).locator("[aria-label='what was printed']").wait_for()  # the last part of the view
        light.watch(cell)
        light.until_idle()
        seen, said = light.seen(), light.said(cell)
        assert seen.blank == 0 and max(seen.heights) - min(seen.heights) <= 8, seen
        assert "predictions at step" in said and light.output(cell).locator("img.sk-paper").count() == 1
        assert (" than coffee-" in said or "as good as coffee-" in said) == (cell == 1), said
        assert light.output(cell).get_by_text("before", exact=True).count() == 2 * cell  # in the legends of two panels
    assert "seed=1 (was 0)" in light.said(1)
    for width in (1400, 420):
        light.resize(width)
        for is_dark in (False, True):
            light.dress(is_dark)
            light.settled()
            light.picture(f"ghost-{width}", 1)
            look = light.look(1)
            problems = {name: look[name] for name in ("small", "faint", "overlaps", "clipped", "out") if look[name]}
            assert problems == {} and look["drawn"] >= 4.5, (width, is_dark, problems, look["drawn"])
            assert look["height"] < 1800  # what is higher than 1,820 pixels Notebook 7 puts into a box of 300


def test_the_quickstart_picked_by_clicking_and_run_from_top_to_bottom(light, server):
    shutil.copy(ROOT / "nbs" / "tutorials" / "quickstart.ipynb", server.folder)
    light.open("quickstart.ipynb")
    sources = ["".join(cell["source"]) for cell in light.model()["cells"]]
    form, fit = (
        next(i for i, source in enumerate(sources) if start in source)
        for start in ("picker = sk.ProfilePicker(", "run = sk.fit(")
    )
    for index in range(form + 1):
        light.run(index)
    picks(light, form, "kaggle_safe")
    light.run_all()
    light.until_idle(480)
    saved = light.save("quickstart.ipynb")
    assert len(open_run(max((server.folder / "runs").glob("coffee-*"))).metrics)
    stays(light, fit)
    light.picture("quickstart", fit)
    for cell in saved["cells"]:
        assert cell["cell_type"] == "markdown" or (
            cell["execution_count"] and not any(o["output_type"] == "error" for o in cell["outputs"])
        ), cell
    assert len(json.dumps([cell.get("outputs") for cell in saved["cells"]])) < 300_000


@pytest.mark.long
@pytest.mark.parametrize(("app", "side_by_side"), [("jupyterlab", 4), ("notebook", 2)])
def test_a_run_can_be_read_in_any_window_and_theme(browser, either, app, side_by_side):
    words = ("trainer.devices=1", "trainer.max_epochs=3", "launch.warm_worker=false")
    one = f"run = fit(Tiny({{'slow': True}}), config('read', *{words!r}))"
    write_notebook(either.folder / "read.ipynb", BEGIN, one)
    with Page(browser, either) as page:
        page.page.set_viewport_size({"width": 1400, "height": 1000})
        page.open("read.ipynb")
        page.run_all()
        frames(page, 1, 1)
        page.until_idle()
        for width, columns in ((1400, side_by_side), (420, 1)):
            page.resize(width)
            for dark in (False, True):
                page.dress(dark)
                page.settled()
                page.picture(f"{app}-{width}", 1)
                seen = page.look(1)
                problems = {name: seen[name] for name in ("small", "faint", "overlaps", "clipped") if seen[name]}
                assert problems == {} and seen["drawn"] >= 4.5, (width, dark, problems, seen["drawn"])
                assert seen["columns"] == columns, (width, seen["columns"])
                assert page.output(1).locator(".p:visible").count() == (4 if width == 1400 else 1)  # compact
        page.output(1).get_by_label("whole view").check()
        assert page.output(1).locator(".p:visible").count() == 4
        assert app != "jupyterlab" or page.problems == []  # Notebook 7 has one of its own


@pytest.mark.long
@pytest.mark.parametrize("app", ["jupyterlab", "notebook"])
def test_a_million_points_stay_as_they_are_after_a_reload_and_without_a_kernel(browser, either, app):
    found = f"import sys; sys.path.append({str(ROOT / 'bench')!r})\nfrom redraws import LiveFrame"
    write_notebook(either.folder / "million.ipynb", f"{found}\nrun = LiveFrame(10**6)\nrun.more(), run.redraw();")
    with Page(browser, either) as page:
        page.open("million.ipynb")
        page.run_all()
        page.until_idle()
        page.resize(1400)
        looks = [page.look(0)]
        saved = page.save("million.ipynb")
        page.says(0, "1,000,001")
        assert len(json.dumps(saved["cells"][0]["outputs"])) < 300_000
        page.reload()
        page.says(0, "1,000,001")  # what was saved is drawn some time after the cells
        looks.append(page.look(0))
        page.page.evaluate(f"() => {NOTEBOOK}.sessionContext.shutdown()")
        page.until(f"!{NOTEBOOK}.sessionContext.session?.kernel", "the kernel to be gone")
        looks.append(page.look(0))
        page.picture(f"million-{app}", 0)
    for look in looks:
        problems = {name: look[name] for name in ("small", "faint", "overlaps", "clipped") if look[name]}
        assert problems == {} and look["drawn"] >= 4.5 and look["columns"] == looks[0]["columns"] >= 2, problems


def test_a_screen_reader_hears_what_is_new_and_finds_a_name_for_everything(story):
    for cell in (FORM, HEARD):
        story.run(cell)
    frames(story, HEARD, 1)
    evaluated(story, HEARD)
    story.output(HEARD).locator("[role=status]", has_text="training").wait_for(state="attached")  # this is said once
    story.page.evaluate(LIVE_REGIONS)
    frames(story, HEARD, 2)
    assert story.page.evaluate("() => window.spoken") == []  # a frame says nothing by itself
    story.press_stop()
    story.until_idle()
    story.until("window.spoken.at(-1)?.includes('interrupted')", "the end to be said")
    spoken = story.page.evaluate("() => window.spoken")
    assert len(spoken) <= 2 and "interrupted" in spoken[-1], spoken
    heard = story.output(HEARD).aria_snapshot()
    for named in (
        'img "best val_loss: ',
        'img "done at: |img "ended at: ',
        'img "samples/s: ',
        'group "messages"',
        'img "loss ',
    ):
        assert re.search(named, heard), (named, heard)
    assert heard.count("status: ") == 1 and len(re.findall(r"interrupted ·", heard)) == 1, heard
    form = story.output(FORM).aria_snapshot()
    assert not re.search(r"^ *- (button|textbox|combobox|checkbox|radio)(:| \[|$)", form, re.M), form  # each has a name
    assert 'button "closed: All other settings' in form
    story.output(FORM).get_by_role("button", name="All other settings").click()
    story.output(FORM).get_by_role("button", name="open: All other settings").wait_for()


# cells of a notebook, by the picture that they show
DISPLAYS = {
    "run": "run = fit(Tiny(), config('shown', *words, 'trainer.log_every_n_steps=50'))",
    "early": """
class Wrong(Tiny):
    def loss(self, model, batch):
        found = model(batch[0])
        return (found @ torch.zeros(3, 5)).mean()

early = fit(Wrong(), config('early', *words))
early""",
    "late": "fit(Tiny({20: 'raise late'}, rank=0), config('late', *words, 'launch.mode=auto'));",
    "worker": """
class Rows(torch.utils.data.Dataset):
    names = {}
    def __init__(self, data): self.data = data
    def __len__(self): return len(self.data)
    def __getitem__(self, index): return self.data[self.names[index]]

class Named(Tiny):
    def datasets(self, cfg): return [Rows(data) for data in super().datasets(cfg)]

fit(Named(), config('worker', *words, 'dataloader.num_workers=1'));""",
    "plot": "other = fit(Tiny(), config('shown', *words, 'seed=1'), show=False)\nrun.plot()",
    "compare": "sk.compare(run, other)",
    "runs": "sk.list_runs('displays')",
    "check": "sk.check(Tiny(), config('check', *words))",
    "search": """
class Picky(Tiny):
    def optimizer(self, model, cfg):
        if cfg.optimizer.lr == 0.02: raise ValueError("not this rate")
        return torch.optim.SGD(model.parameters(), cfg.optimizer.lr)

study = sk.search(Picky(), config('study', *words, 'search.sampler=grid'),
                  space={'optimizer.lr': [0.1, 0.02, 0.05]})""",
}
WORDS = "words = 'run.dir=displays', 'trainer.devices=1', 'trainer.max_epochs=6', 'launch.mode=inline'"


@pytest.fixture(scope="module")
def displays(browser, server):
    "A page with one cell for each of DISPLAYS, which have been run; before them one that prepares."
    begin = f"{BEGIN}\nimport spectrakit as sk\n{WORDS}"
    write_notebook(server.folder / "displays.ipynb", begin, *DISPLAYS.values())
    with Page(browser, server) as page:
        page.open("displays.ipynb")
        page.run_all()
        page.until_idle(600)
        yield page


@pytest.mark.parametrize(
    ("width", "dark"),
    [
        (1440, True),
        (380, True),
        pytest.param(1440, False, marks=pytest.mark.long),
        pytest.param(380, False, marks=pytest.mark.long),
    ],
)
def test_every_display_can_be_read(displays, width, dark):
    displays.resize(width)
    displays.dress(dark)
    for cell, name in enumerate(DISPLAYS, 1):
        displays.picture(f"display-{name}-{width}", cell)
        look = displays.look(cell)
        look["faint"] = [text for text in look["faint"] if not re.fullmatch(r"\[\d+\]:", text[0])]  # the page's own
        look["clipped"] = [text for text in look["clipped"] if "shown-2" not in text]  # a name may be cut
        problems = {kind: look[kind] for kind in ("small", "faint", "overlaps", "clipped", "out") if look[kind]}
        assert problems == {} and look["drawn"] >= 4.5, (name, width, dark, problems, look["drawn"])
        for image in displays.output(cell).locator(PNG).all():  # SVG takes the place of its picture
            assert not image.is_visible() and image.get_attribute("alt")
    assert displays.output(1).locator(".p:visible").count() == (1 if width == 380 else 4)  # compact
    for name in ("plot", "compare"):
        svg = displays.output([*DISPLAYS].index(name) + 1).locator("svg:visible")
        boxes = [svg.nth(k).bounding_box() for k in range(svg.count())]
        assert all(box["x"] + box["width"] <= width for box in boxes), (name, boxes)
        assert max(box["width"] for box in boxes) >= 150, (name, boxes)
    assert displays.problems == []


def test_each_row_has_the_mean_loss_of_its_own_epoch(displays):
    "Although there is a log point every three epochs."
    losses = displays.output(1).locator(TABLE).locator("td:nth-child(3)").all_text_contents()
    assert len(losses) == 6 and len(set(losses)) == 6, losses


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("early", "return (found @ torch.zeros(3, 5)).mean()"),
        ("late", "raise ValueError"),
        ("worker", "self.names[index]"),
    ],
)
def test_a_failure_shows_its_sentence_and_its_line(displays, name, line):
    cell = displays.output([*DISPLAYS].index(name) + 1)
    card = cell.get_by_role("group", name="why the run failed")
    assert card.locator("pre:visible").count() == 1 and line in card.locator("pre:visible").inner_text()
    assert "→" in card.inner_text() and card.locator("details[open]").count() == 0
    assert cell.locator("[role=progressbar]").count() == (name == "late")  # else the card stands alone
    assert "Traceback" not in displays.said([*DISPLAYS].index(name) + 1)


def test_no_line_of_a_search_stays_that_was_true_for_a_while(displays):
    said = displays.said([*DISPLAYS].index("search") + 1)
    assert "completed; 2 completed, 1 failed" in said and "in trial" in said, said
    assert not re.search(r"\bleft\b|running|waiting|▸", said), said


def test_a_click_sorts_the_runs(displays):
    table = displays.output([*DISPLAYS].index("runs") + 1)
    rows_down = """rows => rows.map(row => [row.getBoundingClientRect().top, row.cells[1].innerText])
      .sort((a, b) => a[0] - b[0]).map(row => row[1])"""

    def order():
        return table.locator("tbody tr").evaluate_all(rows_down)

    before = order()
    table.get_by_label("status").check()
    assert order() == sorted(before) and "failed" in before
    table.get_by_label("reversed").check()
    assert order() == sorted(before, reverse=True)


def test_every_display_reads_well_where_styles_are_taken_away(displays, browser):
    "As GitHub shows a notebook: no style, class, id, SVG, script or box."
    cells = displays.model()["cells"][1:]
    page = browser.new_page(viewport={"width": 800, "height": 600})
    pictures = {}
    for name, cell in zip(DISPLAYS, cells, strict=True):
        html = "".join("".join(output.get("data", {}).get("text/html", "")) for output in cell["outputs"])
        page.set_content(page.evaluate(STRIPPED, html))
        said = page.inner_text("body")
        assert "\u2007" not in said and not re.search(r"\n\s*\n\s*\n\s*\n", said), (name, said)
        assert page.evaluate("() => document.body.scrollWidth") <= 800 or name == "runs", name
        pictures[name] = page.evaluate(
            "() => [...document.images].map(i => i.complete && i.naturalWidth > 300 && i.alt)"
        )
        PICTURES.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=PICTURES / f"plain-{name}.png", full_page=True)
    page.close()
    drawn = ("run", "late", "plot", "compare", "search")
    assert all((len(found) == 1 and bool(found[0])) == (name in drawn) for name, found in pictures.items()), pictures


# what is looked at


# "Copied" is there for four seconds, which a busy machine may spend elsewhere: here it stays
LABELS_STAY = """(later => { window.setTimeout = (act, ms, ...more) => later(act, ms === 4000 ? 1e9 : ms, ...more) })(
  window.setTimeout)"""


LIVE_REGIONS = """() => {
  window.spoken = []
  const live = '[role=status], [role=alert], [role=log], [aria-live]'
  new MutationObserver(changes => changes.forEach(change => change.addedNodes.forEach(node => {
    if (node.nodeType !== 1) return
    const found = node.matches(live) ? [node] : [...node.querySelectorAll(live)]
    spoken.push(...found.filter(e => e.closest('.jp-OutputArea')).map(e => e.textContent))
  }))).observe(document.querySelector('.jp-Notebook'), {subtree: true, childList: true})
}"""

# the first lines of a cell's header, one after the other
HEADERS = """cell => {
  window.headers = []
  const found = document.querySelectorAll('.jp-Notebook .jp-Cell')[cell]
  new MutationObserver(() => {
    const line = found.querySelector("[aria-label='how the run stands']")?.firstElementChild.innerText
    if (line && line !== headers.at(-1)) headers.push(line)
  }).observe(found, {subtree: true, childList: true})
}"""

# how wide the narrowest field of a form is, how large its smallest text, and what stands out of the cell
FORM_LOOK = """form => {
  const right = form.getBoundingClientRect().right
  const all = [...form.querySelectorAll('*')].filter(e => e.checkVisibility() && e.getBoundingClientRect().height > 2)
  const text = all.filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()))
  const fields = all.filter(e => e.matches('.sk-field input[type=text], .sk-field select'))
  return {narrowest: Math.min(...fields.map(e => e.getBoundingClientRect().width)),
    smallest: Math.min(...text.map(e => parseFloat(getComputedStyle(e).fontSize))),
    outside: all.filter(e => e.getBoundingClientRect().right > right + 2).map(e => e.className || e.tagName)}
}"""


def opened_by_keyboard(page, cell) -> None:
    "Open two sections of the form with keys alone: what is above stays where it is, and the next key is in them."
    tops = """form => [...form.querySelectorAll('.sk-head, .sk-go button')].map(e => Math.round(
      e.getBoundingClientRect().top - form.getBoundingClientRect().top))"""
    output = page.output(cell)
    form = output.locator(".sk-form")
    before = form.evaluate(tops)
    output.locator("button", has_text="Reset").focus()
    field = output.locator(".sk-field", has_text="data.global_batch_size").locator("input")
    for inside in (output.locator(".sk-fold .sk-fold button").first, field):
        page.page.keyboard.press("Tab")
        page.page.keyboard.press("Space")
        inside.wait_for()
    page.page.keyboard.press("Tab")
    assert field.evaluate("field => field === document.activeElement") and form.evaluate(tops) == before
    look = form.evaluate(FORM_LOOK)
    assert look["smallest"] >= 11 and look["outside"] == [], look


# as a sanitizer leaves it
STRIPPED = """html => {
  const found = new DOMParser().parseFromString(html, 'text/html')
  found.querySelectorAll('style, script, svg, input, button').forEach(e => e.remove())
  found.querySelectorAll('*').forEach(e => ['style', 'class', 'id'].forEach(name => e.removeAttribute(name)))
  return found.body.innerHTML
}"""


def step_of(cell, what) -> str:
    "JavaScript: the step that `what` tells, in a cell's output; 0 where there is none."
    read = "getAttribute('aria-label')" if what == CURVES else "innerText.replaceAll(',', '')"
    return (
        f"Number(document.querySelectorAll('.jp-Notebook .jp-Cell')[{cell}].querySelector(\"{what}\")"
        f"?.{read}.match(/step (\\d+)/)?.[1] ?? 0)"
    )


def headers(page) -> list[str]:
    "The lines that HEADERS has seen, without commas and line breaks."
    return [line.replace(",", "").replace("\n", " ") for line in page.page.evaluate("() => window.headers")]


def frames(page, cell, count) -> list[int]:
    "The steps at which `count` different pictures of the curves were drawn, one after the other."
    steps = [0]
    for _ in range(count):
        step = step_of(cell, CURVES)
        steps.append(page.until(f"{step} > {steps[-1]} && {step}", "a new picture of the curves"))
    return steps[1:]


def evaluated(page, cell) -> None:
    "Wait until the table of evaluations has a row."
    page.output(cell).locator(TABLE).wait_for()


def the_run(server, name):
    found = [path for path in (server.folder / "runs").glob(f"{name}-*") if path.name[len(name) + 1 :][:8].isdigit()]
    assert len(found) == 1, found
    return open_run(found[0])


def picks(page, cell, name) -> None:
    "Click another profile in the form, and see what it means."
    first = rf"^\s*{re.escape(profile_note(name, 'intent'))}\s*{name}\b"
    card = page.output(cell).locator("label", has_text=re.compile(first)).first
    card.wait_for()
    before = page.said(cell)
    card.click()
    wait_for(lambda: page.said(cell) != before, "the consequences of another profile")


def stays(page, cell) -> None:
    "The end of a run in a cell: a table, and curves or, where SVG is taken away, their picture; no button."
    output = page.output(cell)
    output.locator(TABLE).wait_for()
    page.settled()
    assert output.locator(TABLE).is_visible() and output.locator("button").count() == 0 and page.problems == []
    curves = output.locator(f"{CURVES} svg").first
    assert output.locator(PNG).first.is_visible() != (curves.count() > 0 and curves.is_visible())
