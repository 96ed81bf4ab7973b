"The profile picker: which override wins, wrong input, and the form: without a kernel, in today's kernel, in Colab's."

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

import helpers
import notebooks
import spectrakit as sk
from spectrakit.config.compose import compose, diff
from spectrakit.config.profile_files import profiles
from spectrakit.config.schema import get, settings
from spectrakit.picker import fields as forms
from spectrakit.picker import picker as pickers
from spectrakit.picker import selection as choosing
from spectrakit.picker.provenance import override_text, read_selection, yaml_text
from spectrakit.system.errors import RequestError
from spectrakit.system.platforms.detect import detect


@pytest.fixture(autouse=True)
def an_empty_folder(tmp_path, monkeypatch):
    "Nothing outside says anything, and what is written goes here."
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("SPECTRAKIT_", "KAGGLE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")  # a GPU of this machine would suggest its own profile


def refused(call, *args, **kwargs) -> str:
    with pytest.raises(RequestError) as error:
        call(*args, **kwargs)
    return str(error.value)


def make(*words, **options):
    "A picker and its form, both outside a notebook."
    picker = sk.ProfilePicker(*words, **options)
    _ = picker.widget  # built
    return picker, picker._form


# --- who wins ---------------------------------------------------------------------------------------------------------


def test_the_call_beats_the_environment_which_beats_what_is_frozen(monkeypatch):
    monkeypatch.setenv("SPECTRAKIT_OVERRIDES", "optimizer.lr=0.2 seed=2")
    picker = sk.ProfilePicker("optimizer.lr=0.1")
    picker.choose("trainer=kaggle_safe", "optimizer.lr=0.3", "seed=3", "trainer.max_epochs=7")
    config = picker.config
    assert (config.profile, config.optimizer.lr, config.seed, config.trainer.max_epochs) == ("kaggle_safe", 0.1, 2, 7)
    assert picker.sources == [
        "trainer=kaggle_safe: frozen in the notebook",
        "trainer.max_epochs=7: frozen in the notebook",
        "seed=2: SPECTRAKIT_OVERRIDES (environment); seed=3, frozen in the notebook, is overridden",
        "optimizer.lr=0.1: the call; optimizer.lr=0.2, SPECTRAKIT_OVERRIDES (environment), is overridden; "
        "optimizer.lr=0.3, frozen in the notebook, is overridden",
    ]
    assert compose(*picker.words) == config == compose(config=written_file(picker.yaml()))
    again = compose(config="picked.yaml")  # one's own choice only: the environment of today is no choice
    assert (again.profile, again.optimizer.lr, again.seed) == ("kaggle_safe", 0.3, 3)


def written_file(text: str) -> Path:
    Path("written.yaml").write_text(text)
    return Path("written.yaml")


def test_a_stronger_profile_beats_the_weaker_settings_that_it_sets_itself(monkeypatch):
    monkeypatch.setenv("SPECTRAKIT_PROFILE", "smoke")
    picker = sk.ProfilePicker()
    picker.choose("trainer=kaggle_safe", "trainer.max_epochs=40", "optimizer.lr=0.3")
    assert (picker.config.profile, picker.config.trainer.max_epochs, picker.config.optimizer.lr) == ("smoke", 1, 0.3)
    assert "trainer.max_epochs=40, frozen in the notebook, is overridden" in picker.sources[0]
    monkeypatch.delenv("SPECTRAKIT_PROFILE")
    assert sk.ProfilePicker().config.trainer.max_epochs == 40  # and is still there when the variable is gone


@pytest.mark.parametrize(
    "name, value, told",
    [
        ("SPECTRAKIT_PROFILE", "kagle_safe", "Did you mean 'kaggle_safe'"),
        ("SPECTRAKIT_PROFILE", "a b", "There is no profile"),
        ("SPECTRAKIT_OVERRIDES", "optimizer.lr=fast", "optimizer.lr=fast is not possible: it needs a number above 0"),
        ("SPECTRAKIT_OVERRIDES", "run.name='my run", "a quote is not closed"),
        ("SPECTRAKIT_OVERRIDES", "optimizer.lr", "a setting without a value"),
        ("SPECTRAKIT_OVERRIDES", "optimzer.lr=0.1", "Did you mean 'optimizer.lr'"),
        ("SPECTRAKIT_OVERRIDES", "lr=1 optimizer.lr=2", "Keep one of them"),
    ],
)
def test_a_wrong_variable_is_named(monkeypatch, name, value, told):
    monkeypatch.setenv(name, value)
    sentence = refused(sk.ProfilePicker)
    assert sentence.startswith(f"{name} (environment) is wrong: ") and told in sentence


def test_a_folder_in_the_wrong_variable_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECTRAKIT_PROFILE", str(tmp_path))
    assert "goes into SPECTRAKIT_PROFILES" in refused(sk.ProfilePicker)


@pytest.mark.parametrize(
    "text, name",
    [
        ("run.name='my run'", "my run"),
        ('run.name="my run"', "my run"),
        ("'run.name=my run'", "my run"),
        ("run.name=mine\n seed=1", "mine"),
    ],
)
def test_words_in_the_environment_are_parted_as_a_shell_does(monkeypatch, text, name):
    monkeypatch.setenv("SPECTRAKIT_OVERRIDES", text)
    assert sk.ProfilePicker().config.run.name == name


def test_secrets_are_used_and_shown_to_nobody(monkeypatch, capsys):
    monkeypatch.setenv("SOME_TOKEN", "sesame-4711")
    monkeypatch.setenv("SPECTRAKIT_OVERRIDES", "extra.note=sesame-4711 extra.api_key=open-sesame")
    picker, form = make()
    picker.choose("trainer=smoke")
    assert picker.config.extra == {"note": "sesame-4711", "api_key": "open-sesame"}
    shown = [
        capsys.readouterr().out,
        repr(picker),
        picker.yaml(),
        *picker.sources,
        picker.colab_cell(),
        form.lines.value,
        choosing.as_html(picker._selection),
        Path("picked.yaml").read_text(),
    ]
    assert not [text for text in shown if "sesame" in text]
    monkeypatch.setenv("SPECTRAKIT_OVERRIDES", "optimizer.lr=sesame-4711")
    assert "sesame" not in refused(sk.ProfilePicker)


# --- written down and read again --------------------------------------------------------------------------------------


def test_a_value_comes_back_as_it_was():
    for value in (
        "it's",
        "a\\",
        'say "hi"',
        "a\\'b\\",
        "null",
        "1e5",
        "8h30m",
        "<script>",
        "",
        " x ",
        "a=b",
        "[1",
        "{",
        "~",
        "a,b",
        "#x",
        3,
        -0.5,
        1e-7,
        True,
        None,
        ["a b", None, 2.5],
        {"a": {"b": [1]}},
    ):
        config = compose(override_text("extra.x", value))
        assert (config.extra["x"] == value and type(config.extra["x"]) is not bool) or value is True, value


@pytest.mark.parametrize("name", ["a100", "ddp", "gpu", "kaggle_2xt4", "smoke"])
def test_a_profile_is_written_as_yaml_that_composes_to_the_same(name):
    words = [
        f"trainer={name}",
        "optimizer.lr=0.0003",
        "trainer.devices=2",
        "run.name=x",
        "local/accumulate_grad_batches=high",
        "env=colab",
    ]
    config = compose(*words)
    assert diff(compose(config=written_file(yaml_text(words, config))), config) == {}
    again, wrong = read_selection(Path("written.yaml"), "file")
    assert wrong == [] and diff(compose(*(s.text for s in again)), config) == {}


@pytest.mark.slow
def test_a_choice_is_found_again_and_taken_back(tmp_path):
    picker, form = make()
    form.controls["trainer"].value = "smoke"
    form.controls["optimizer.lr"].value = "0.5"
    again, its_form = make()
    assert (
        again.config == picker.config == compose("trainer=smoke", "optimizer.lr=0.5")
        and again.sources[1] == "optimizer.lr=0.5: picked.yaml"
    )
    its_form.reset.click()
    assert not Path("picked.yaml").exists() and [p.name for p in tmp_path.iterdir()] == []
    assert sk.ProfilePicker().words == ["trainer=defaults"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "content, told",
    [
        ("optimizer: {lr: 0.5, beta: 0.9}\n", "There is no setting 'optimizer.beta'"),
        ("optimizer: {lr: 0.5\n", "not valid YAML"),
        (
            "optimizer: {lr: 0.5}\nrun: {name: !!python/object/apply:os.system ['touch stolen']}\n",
            "could not determine a constructor",
        ),
        ("optimizer: {lr: 0.5}\ndefaults: [trainer: gone]\n", "There is no profile trainer=gone"),
        ("- 1\n", "contains no settings"),
        ("optimizer: {lr: 0.5}\ntrainer: {max_epochs: many}\n", "trainer.max_epochs=many is not possible"),
        ("optimizer: {lr: 0.5}\ndefaults: 5\n", "holds 5"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_until_the_choice_is_made_anew(content, told):
    header = choosing.HEADER
    Path("picked.yaml").write_text(header + content)
    picker, form = make()
    sentence = refused(lambda: picker.config)
    assert told in sentence and "picked.yaml" in sentence and not Path("stolen").exists()
    assert told in re.sub(r"&#x27;", "'", form.consequences.value)
    form.controls["seed"].value = "4"
    assert picker.config.seed == 4 and "beta" not in Path("picked.yaml").read_text()


def test_a_file_of_ones_own_is_read_and_never_overwritten():
    Path("mine.yaml").write_text("# by hand\noptimizer: {lr: 0.5}\n")
    picker, form = make(file="mine.yaml")
    assert picker.config.optimizer.lr == 0.5
    form.controls["seed"].value = "4"
    assert Path("mine.yaml").read_text() == "# by hand\noptimizer: {lr: 0.5}\n" and "left as it is" in form.status.value


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    picker, form = make(file=tmp_path / "gone" / "picked.yaml")
    form.controls["seed"].value = "4"
    assert "cannot be written" in form.status.value and picker.config.seed == 4


# --- the form, without a kernel ---------------------------------------------------------------------------------------


def open_all(form) -> None:
    for index in range(len(pickers.SECTIONS)):
        form.sections.fill(index)
    for index in range(len(form.sections.blocks)):
        form.sections.fill_block(index)


@pytest.mark.slow
def test_every_setting_can_be_typed_and_says_what_is_wrong():
    picker, form = make()
    open_all(form)
    assert set(form.controls) == {*forms.fields(), *pickers.GROUPS, choosing.MORE}
    before = picker.config
    assert picker.words == ["trainer=defaults"]
    for key, field in forms.fields().items():
        control, value = form.controls[key], get(before, key)
        if field.kind == "flag":
            control.value = not value
        elif field.kind == "list":
            control.value = next(o for o in field.options if o != control.value)
        else:
            control.value = "<script>alert(1)</script>"
    wrong = set(picker._selection.errors)
    assert {
        "trainer.max_epochs",
        "optimizer.lr",
        "watchdog.limit",
        "tracking.names",
        "resume.allow",
    } <= wrong and "run.name" not in wrong
    assert all(WARNED in form.notes[key].value for key in wrong) and all(
        form.controls[key].value == "<script>alert(1)</script>" for key in wrong
    )
    whole = "".join(box.value for box in (*form.notes.values(), form.consequences, form.lines))
    assert "<script" not in whole and "&lt;script&gt;" in whole
    xml.etree.ElementTree.fromstring(f"<div>{whole}</div>")
    right = set(forms.fields()) - wrong
    assert {key for key in picker._selection.own} >= {key for key in right if forms.fields()[key].kind != "text"}


WARNED = 'role="alert"'


@pytest.mark.slow
def test_one_wrong_field_does_not_lose_the_others():
    picker, form = make(samples=1000)
    form.controls["optimizer.lr"].value = "0.5"
    for half in ("3", "3e", "3e-", "-", "0", "nan", "1e400"):
        form.controls["data.micro_batch_size"].value = half if half != "3" else "3"
        if half != "3":
            assert (
                WARNED in form.notes["data.micro_batch_size"].value
                and form.controls["data.micro_batch_size"].value == half
            )
        assert picker._selection.config.optimizer.lr == 0.5 and form.controls["optimizer.lr"].value == "0.5"
    assert "data.micro_batch_size=inf" in refused(lambda: picker.config)
    form.controls["data.micro_batch_size"].value = "16"
    assert picker.config == compose("trainer=defaults", "optimizer.lr=0.5", "data.micro_batch_size=16")
    assert "32 in each of 10 epochs; 1000 samples" in form.consequences.value


@pytest.mark.parametrize(
    ("key", "typed", "profile"),
    [
        ("watchdog.limit", "3h", "8h30m"),
        ("trainer.max_epochs", "7", 10),
        ("optimizer.lr", "0.5", 0.001),
        ("trainer.max_steps", "90", None),
    ],
)
def test_a_cleared_field_is_as_the_profile_has_it(key, typed, profile):
    picker, form = make("trainer=kaggle_safe")
    open_all(form)
    for cleared in ("", "  "):
        form.controls[key].value = typed
        assert picker.words[-1] == f"{key}={typed}"
        form.controls[key].value = cleared
        assert picker.words == ["trainer=kaggle_safe"] and get(picker.config, key) == profile
        assert WARNED not in form.notes[key].value and "null" not in form.lines.value


def test_null_is_typed_where_a_setting_takes_that():
    picker, form = make("trainer=kaggle_safe")
    form.controls["watchdog.limit"].value = "null"
    assert picker.config.watchdog.limit is None and picker.words[-1] == "watchdog.limit=null"
    form.controls["watchdog.limit"].value = "8h30m"  # as the profile has it
    assert picker.words == ["trainer=kaggle_safe"]


def test_a_label_is_not_said_twice():
    _, form = make()
    notes = {key: form.notes[key].value for key in ("seed", "optimizer.lr")}
    assert "seed" not in notes["seed"] and "<code>optimizer.<wbr/>lr</code>" in notes["optimizer.lr"]


def test_a_precision_that_is_not_used_is_told():
    _, form = make("trainer=kaggle_safe", "distributed.mixed_precision=fp16")
    assert "fp16 was chosen; " in form.consequences.value  # there is no GPU
    _, form = make("distributed.mixed_precision=no")
    assert "was chosen" not in form.consequences.value


def test_a_profile_is_chosen_by_its_place_in_the_list_as_a_browser_does():
    picker, form = make()
    control = form.controls["trainer"]
    names = [value for _, value in control.options]
    assert sorted(names) == profiles()["trainer"] and names[0] == "defaults"  # what is suggested comes first
    control.set_state({"index": names.index("kaggle_safe")})
    assert picker.config.profile == "kaggle_safe" and form.controls["data.micro_batch_size"].value == "64"
    form.controls["data.micro_batch_size"].value = "48"
    control.set_state({"index": names.index("smoke")})
    assert (
        form.controls["data.micro_batch_size"].value == "48" and form.controls["trainer.max_epochs"].value == "1"
    )  # what was typed stays


@pytest.mark.slow
def test_a_policy_and_an_environment_can_be_chosen_and_taken_back():
    picker, form = make()
    form.controls["local/accumulate_grad_batches"].value = "high"
    form.controls["env"].value = "colab"
    assert picker.config == compose("local/accumulate_grad_batches=high", "env=colab")
    assert (
        form.controls["training.gradient_accumulation_steps"].value
        == str(picker.config.training.gradient_accumulation_steps)
        != "1"
    )
    form.controls["local/accumulate_grad_batches"].value = "–"
    assert picker.config == compose("env=colab")


def test_what_is_said_more_strongly_cannot_be_clicked(monkeypatch):
    monkeypatch.setenv("SPECTRAKIT_OVERRIDES", "seed=3")
    _picker, form = make("trainer=smoke")
    assert (
        form.controls["trainer"].disabled
        and form.controls["seed"].disabled
        and not form.controls["optimizer.lr"].disabled
    )
    assert "SPECTRAKIT_OVERRIDES" in form.notes["seed"].value and "the call" in form.notes["trainer"].value


def test_words_of_ones_own():
    picker, form = make()
    form.sections.fill(1)
    more = form.controls[choosing.MORE]
    more.value = "task.fold=2 extra.note='a b' lr=0.5"
    assert (picker.config.task, picker.config.extra, picker.config.optimizer.lr) == ({"fold": 2}, {"note": "a b"}, 0.5)
    assert form.controls["optimizer.lr"].value == "0.5" and shlex.split(more.value) == ["task.fold=2", "extra.note=a b"]
    more.value = "task.fold=2 nothing.such=1"
    assert "There is no setting" in form.notes[choosing.MORE].value and picker._selection.config.optimizer.lr == 0.5
    more.value = "seed='5"
    assert "A quote is not closed" in form.notes[choosing.MORE].value
    more.value = ""
    assert picker.config.task == {} and picker.config.optimizer.lr == 0.5


def test_settings_that_contradict_each_other_are_told_and_kept():
    _picker, form = make(samples=1000)
    form.sections.fill_block(list(form.sections.blocks).index("scheduler"))
    form.controls["scheduler.warmup_steps"].value = "10"
    form.controls["scheduler.warmup_epochs"].value = "1"
    assert "both set the warm-up" in form.consequences.value and form.controls["scheduler.warmup_steps"].value == "10"


@pytest.mark.slow
def test_a_broken_profile_of_ones_own_is_told_beside_the_list():
    folder = Path("profiles/trainer")
    folder.mkdir(parents=True)
    (folder / "broken.yaml").write_text("# <b>mine</b>\ntrainer: {max_epochs: many}\n")
    (folder / "mine.yaml").write_text("# mine\ndefaults: [smoke]\noptimizer: {lr: 0.7}\n")
    picker, form = make()
    form.controls["optimizer.lr"].value = "0.5"
    form.controls["trainer"].value = "broken"
    assert "max_epochs=many" in form.notes["trainer"].value and picker._selection.config.optimizer.lr == 0.5
    assert "broken" in refused(lambda: picker.config)
    form.sections.fill(2)
    assert (
        "cannot be used" in form.sections.outer.contents[2].children[0].value
        and "<b>mine" not in form.sections.outer.contents[2].children[0].value
    )
    form.controls["trainer"].value = "mine"
    assert (picker.config.profile, picker.config.trainer.max_epochs, picker.config.optimizer.lr) == ("mine", 1, 0.5)


def test_wrong_calls_are_refused():
    assert "Did you mean 'kaggle_safe'" in refused(sk.ProfilePicker, "trainer=kagle_safe")
    for samples in (-1, "12", True, 1.5):
        assert "number of training samples" in refused(sk.ProfilePicker, samples=samples)
    assert "coffee" in refused(sk.ProfilePicker, task="cofee")
    picker = sk.ProfilePicker()
    for words in (["trainer=kagle"], ["seed=-1"], ["seed"], ["nothing.such=1"]):
        refused(picker.choose, *words)
    assert refused(picker.choose, settings={"optimizer.lr": "3e-"}).startswith("optimizer.lr=3e- is not possible")
    assert picker.words == ["trainer=defaults"]


def test_without_ipywidgets_the_extra_is_named(monkeypatch):
    picker = sk.ProfilePicker()
    monkeypatch.setattr(pickers.importlib.util, "find_spec", lambda name: None)
    assert 'pip install "spectrakit-train[notebook]"' in refused(lambda: picker.widget)


def test_an_earlier_run_tells_samples_and_pace():
    run = Path("runs/coffee-1")
    run.mkdir(parents=True)
    here = detect()
    decided = {
        "task": "coffee",
        "train_samples": 384,
        "world_size": 1,
        "device": "cuda:0" if here.gpus else "cpu",
        "effective_batch_size": 32,
    }
    (run / "environment.json").write_text(json.dumps({"platform": here.to_dict(), "decided": decided}))
    (run / "config.yaml").write_text("seed: 1\n")
    (run / "summary.json").write_text(json.dumps({"steps": 100, "seconds": 32.0}))
    _picker, form = make("accumulate_grad_batches=1", task="coffee")
    assert (
        "120" in form.consequences.value
        and "384 samples, by coffee-1" in form.consequences.value
        and "about 38 s" in form.consequences.value
    )
    for name in ("environment.json", "summary.json"):
        (run / name).write_text("{")
    assert "forecast" not in make(task="coffee")[1].consequences.value


# --- where nobody clicks ----------------------------------------------------------------------------------------------


def run_python(code: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**helpers.clean_environ(), **environ},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_script_is_told_and_goes_on_without_torch_and_widgets():
    said = run_python(
        "import sys, spectrakit as sk\np = sk.ProfilePicker()\nprint(p.config.profile, p.config.seed, "
        "{'torch', 'ipywidgets', 'matplotlib'} & set(sys.modules))",
        KAGGLE_KERNEL_RUN_TYPE="Batch",
        SPECTRAKIT_OVERRIDES="seed=5",
    )
    assert (
        "no form here: this is not a notebook" in said
        and "trainer=kaggle_safe: suggested: a Kaggle session ends by the clock" in said
    )
    assert said.strip().endswith("kaggle_safe 5 set()")


CELLS = [
    "SPECTRAKIT_OVERRIDES = {overrides!r}",
    "import spectrakit as sk\npicker = sk.ProfilePicker()\npicker",
    "picker.choose('trainer=smoke', 'optimizer.lr=0.3')",
    "print(picker.config.profile, picker.config.optimizer.lr, picker.config.seed)",
]


def executed(folder: Path, overrides) -> nbformat.NotebookNode:
    "The notebook, run as nbclient and papermill do."
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell.format(overrides=overrides)) for cell in CELLS]
    )
    options = {"timeout": 240, "startup_timeout": 240, "kernel_name": "python3"}
    return notebooks.executed(
        lambda: NotebookClient(notebook, **options, resources={"metadata": {"path": str(folder)}})
    )


@pytest.mark.slow
def test_a_notebook_that_is_run_by_a_program_needs_no_click(tmp_path):
    done = executed(tmp_path, ["seed=9"])
    assert "".join(part.text for part in done.cells[3].outputs) == "smoke 0.3 9\n"  # a busy kernel sends it in parts
    first = done.cells[1].outputs
    assert "run by a program" in first[0].text and set(first[1].data) == {"text/html", "text/plain"}
    assert "widgets" not in done.metadata and len(nbformat.writes(done)) < 60_000
    with pytest.raises(CellExecutionError) as error:
        executed(tmp_path, 3)
    assert "SPECTRAKIT_OVERRIDES (notebook) is wrong: 3 is not possible" in str(error.value)


# --- a real kernel ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_form_in_todays_kernel(todays_kernel):
    assert todays_kernel.ask("__import__('ipywidgets').__version__").startswith("8.")
    a_person_uses_the_form(todays_kernel)


@pytest.mark.slow
def test_the_form_in_colabs_kernel(colabs_kernel):
    versions = "tuple(__import__(name).__version__ for name in ('ipykernel', 'IPython', 'ipywidgets'))"
    assert colabs_kernel.ask(versions) == ("6.17.1", "7.34.0", "7.7.1")
    a_person_uses_the_form(colabs_kernel)


def a_person_uses_the_form(notebook):
    shown = notebook.run("import spectrakit as sk\npicker = sk.ProfilePicker(samples=1000)\npicker")
    bundle = next(json.loads(text) for kind, text in shown.frames if kind == "execute_result")
    assert set(bundle) == {"application/vnd.jupyter.widget-view+json", "text/html", "text/plain"}
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"] == notebook.ask("picker.widget.model_id")
    assert (
        bundle["text/plain"] == "ProfilePicker(trainer=defaults)"
        and "<table" in bundle["text/html"]
        and "As it was when this cell ran" in bundle["text/html"]
    )
    # a choice in a list, a line of text, half a number, a fold, a click: as a browser sends them
    tell(
        notebook,
        "controls['trainer']",
        index=notebook.ask("[v for _, v in picker._form.controls['trainer'].options].index('smoke')"),
    )
    tell(notebook, "controls['optimizer.lr']", value="0.5")
    tell(notebook, "controls['trainer.max_epochs']", value="3e-")
    tell(notebook, "sections.outer.buttons[0]", value=True)
    block = notebook.ask("list(picker._form.sections.blocks).index('scheduler')")
    tell(notebook, f"sections.inner.buttons[{block}]", value=True)
    tell(
        notebook,
        "controls['scheduler.name']",
        index=notebook.ask("picker._form.fields['scheduler.name'].options.index('linear')"),
    )
    assert notebook.ask("picker.words") == ["trainer=smoke", "optimizer.lr=0.5", "scheduler.name=linear"]
    sent = "".join(text for kind, text in notebook.strays if kind == "comm_msg")
    assert "adamw, linear" in sent and "trainer.max_epochs=3e- is not possible" in sent  # the browser was told
    wrong = notebook.wait(notebook.send("picker.freeze()"))
    assert (
        wrong.reply["status"] == "error"
        and "trainer.max_epochs=3e- is not possible" in wrong.reply["evalue"]
        and not wrong.reply.get("payload")
    )
    tell(notebook, "controls['trainer.max_epochs']", value="4")
    # frozen: the cell that holds the call is rewritten, and does the same in a fresh picker
    frozen = notebook.run("seed = 1  # stays\npicker.freeze()")
    (payload,) = frozen.reply["payload"]
    line = 'picker.choose("trainer=smoke", "optimizer.lr=0.5", "scheduler.name=linear", "trainer.max_epochs=4")'
    assert (payload["source"], payload["replace"], payload["text"]) == (
        "set_next_input",
        True,
        f"seed = 1  # stays\n{line}",
    ) and line in frozen.text
    (notebook.folder / "picked.yaml").unlink()
    notebook.run("picker = sk.ProfilePicker()\npicker.widget")
    again = notebook.run(payload["text"])
    assert "optimizer.lr=0.5: frozen in the notebook" in again.text and not again.reply["payload"]
    assert notebook.ask("(picker.config.trainer.max_epochs, picker._form.controls['optimizer.lr'].value)") == (4, "0.5")
    notebook._client.session.send(
        notebook._client.shell_channel.socket,
        "comm_msg",
        {
            "comm_id": notebook.ask("picker._form.reset.model_id"),
            "data": {"method": "custom", "content": {"event": "click"}},
        },
    )
    notebook.until(lambda: notebook.ask("picker.words") == ["trainer=defaults"], "the click to arrive")
    # by hand, with a mistake in it
    wrong = notebook.wait(notebook.send('picker.choose("trainer=smok")'))
    assert wrong.reply["status"] == "error" and "Did you mean 'smoke'" in wrong.reply["evalue"]


def tell(notebook, which: str, **state) -> None:
    "Send what a front end sends when a widget is changed by hand."
    comm = notebook.ask(f"picker._form.{which}.model_id")
    notebook._client.session.send(
        notebook._client.shell_channel.socket,
        "comm_msg",
        {"comm_id": comm, "data": {"method": "update", "state": state, "buffer_paths": []}},
    )
    name, value = next(iter(state.items()))
    notebook.until(lambda: notebook.ask(f"picker._form.{which}.{name}") == value, f"{which} to be {value}")


@pytest.mark.slow
def test_the_cell_for_colab_does_what_was_chosen():
    picker = sk.ProfilePicker()
    picker.choose(
        "trainer=smoke",
        "optimizer.lr=0.5",
        "data.shuffle=false",
        "extra.note='it\\'s \"x\"'",
        "watchdog.limit=90m",
        "scheduler.name=linear",
    )
    cell, known = picker.colab_cell(), {}
    shapes = settings()["scheduler.name"].limits["choices"]
    assert f"# @param {json.dumps(['', *shapes])}" in cell and 'lr = "0.5"  # @param {type:"string"}' in cell
    Path("picked.yaml").unlink()
    exec(cell, known)
    assert known["picker"].config == picker.config and isinstance(ast.parse(cell), ast.Module)
    exec(cell.replace('lr = "0.5"', 'lr = ""').replace('profile = "smoke"', 'profile = "kaggle"'), known)
    assert (known["picker"].config.profile, known["picker"].config.optimizer.lr) == ("kaggle", 1e-3)
    wrong = next(line for line in cell.splitlines() if line.startswith("more = "))
    assert "a quote is not closed" in refused(exec, cell.replace(wrong, 'more = "it\'s"'), {})
    exec(cell.replace(wrong, "more = None"), known)
    assert "note" not in known["picker"].config.extra


# --- whose selection it is --------------------------------------------------------------------------------------------


def test_the_selection_of_one_notebook_does_not_set_up_another(monkeypatch, capsys):
    monkeypatch.setenv("JPY_SESSION_NAME", "work/first.ipynb")
    sk.ProfilePicker().choose("trainer=smoke")
    assert Path("first.picked.yaml").is_file() and not Path("picked.yaml").exists()
    assert sk.ProfilePicker().config.profile == "smoke"  # a re-run needs no click
    monkeypatch.setenv("JPY_SESSION_NAME", "work/second.ipynb")
    capsys.readouterr()
    second = sk.ProfilePicker()
    assert second.config.profile == "defaults"
    assert "first.picked.yaml is another notebook's" in capsys.readouterr().out
    monkeypatch.delenv("JPY_SESSION_NAME")  # run by a program, which does not say which notebook it is
    assert sk.ProfilePicker().config.profile == "defaults" and "first.picked.yaml" in capsys.readouterr().out
    assert sk.ProfilePicker(file="first.picked.yaml").config.profile == "smoke"


# --- the form: what is typed, and a click on Train --------------------------------------------------------------------


def test_what_is_being_typed_is_not_corrected_under_the_fingers():
    picker, form = make()
    for so_far in ("0", "0.", "0.0", "0.05"):
        form.controls["optimizer.lr"].value = so_far
        assert form.controls["optimizer.lr"].value == so_far
    form.controls["optimizer.lr"].value = "5e-2"
    form.controls["seed"].value = "3"  # somewhere else
    assert form.controls["optimizer.lr"].value == "0.05" and picker.config.optimizer.lr == 0.05


def test_an_error_stands_beside_its_field_and_nowhere_else():
    _picker, form = make(task="coffee")
    pressable = []  # at the moment that the error appears
    form.notes["optimizer.lr"].observe(lambda _: pressable.append(not form.start.disabled), names="value")
    form.controls["optimizer.lr"].value = "fast"
    assert pressable == [False]
    whole = "".join(box.value for box in (*form.notes.values(), form.consequences, form.lines, form.status))
    assert whole.count("optimizer.lr=fast") == 1 == whole.count('role="alert"')
    assert "sk-wrong" in form.rows["optimizer.lr"]._dom_classes and form.start.disabled
    form.controls["optimizer.lr"].value = "0.5"
    assert "sk-wrong" not in form.rows["optimizer.lr"]._dom_classes and not form.start.disabled


def test_train_trains_what_is_selected_and_tells_what_came_of_it(monkeypatch):
    from spectrakit.api import actions

    asked = []
    monkeypatch.setattr(actions, "fit", lambda task, config, **_: asked.append((task, config)) or "coffee-1: completed")
    picker, form = make("trainer=smoke", task="coffee")
    form.start.click()
    assert asked == [("coffee", picker.config)] and picker.run == "coffee-1: completed"
    assert "coffee-1: completed. It is picker.run" in form.status.value and not form.start.disabled

    def refuse(*_, **__):
        raise RequestError("No time is left.")

    monkeypatch.setattr(actions, "fit", refuse)
    form.start.click()
    assert "No time is left." in form.status.value and WARNED in form.status.value and not form.start.disabled
    assert form.start not in make()[1].box.children[-2].children  # without a task there is nothing to train
