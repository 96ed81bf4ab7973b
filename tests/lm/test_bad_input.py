"""What can be wrong with texts, tokenizers and models: each in a sentence, before a step is taken; and what is found
only while a run is under way ends it with its checkpoint.
"""

import json

import pytest

import tiny_lm
from helpers import run_cli
from in_process import trainer_in
from spectrakit.config.compose import compose
from spectrakit.lm.language_model import LanguageModel
from spectrakit.system.errors import RequestError
from spectrakit.training.setup import make_model, read_datasets

pytestmark = pytest.mark.slow  # they import transformers


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lm")
    tiny_lm.save_model(folder / "tiny")
    tiny_lm.save_lines(folder / "texts.jsonl", 60)
    return folder


def refused(here, *words: str) -> str:
    "The sentence with which data or model are refused."
    config = compose(f"task.model={here / 'tiny'}", f"task.data={here / 'texts.jsonl'}", "task.seq_len=32", *words)
    task = LanguageModel()
    with pytest.raises(RequestError) as caught:
        read_datasets(task, config)
        make_model(task, config)
    return str(caught.value)


def lines(path, *rows) -> str:
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return f"task.data={path}"


def test_data_without_text(here, tmp_path):
    assert "d.jsonl has no text: its fields are label (int)" in refused(here, lines(tmp_path / "d.jsonl", {"label": 1}))
    assert "no field 'txt'; it has 'id', 'text'. Did you mean 'text'?" in refused(here, "task.text_field=txt")


def test_fields_of_mixed_languages(here, tmp_path):
    (tmp_path / "parts").mkdir()
    lines(tmp_path / "parts/a.jsonl", {"text": "one two three"})
    lines(tmp_path / "parts/b.jsonl", {"texto": "four five six"})
    said = refused(here, f"task.data={tmp_path / 'parts'}")
    assert (
        "b.jsonl, row 1, has no field 'text'; it has 'texto'." in said and "text_field=[text,texto] takes both" in said
    )
    config = compose(
        f"task.model={here / 'tiny'}",
        f"task.data={tmp_path / 'parts'}",
        "task.text_field=[text,texto]",
        "task.seq_len=4",
        "task.valid=none",
    )
    assert len(read_datasets(LanguageModel(), config)[0]) == 2


def test_a_corrupt_shard(here, tmp_path):
    parts = tiny_lm.save_parquet(tmp_path / "parts")
    torn = parts / "part-001.parquet"
    torn.write_bytes(torn.read_bytes()[:-200])
    said = refused(here, f"task.data={parts}")
    assert "The shard part-001.parquet cannot be read" in said and ".." not in said
    torn.write_bytes(b"")
    assert "part-001.parquet is empty" in refused(here, f"task.data={parts}")
    bad = lines(tmp_path / "bad.jsonl", *({"text": "one two"} for _ in range(70)), '{"tex\n', {"text": "three four"})
    assert "bad.jsonl, line 71, is no JSON" in refused(here, bad)
    config = compose(f"task.model={here / 'tiny'}", bad, "task.seq_len=4", "task.bad_rows=skip", "task.valid=none")
    assert read_datasets(LanguageModel(), config)[0].samples == 53  # 71 texts of three tokens


def test_an_empty_split_and_mixed_formats(here, tmp_path):
    import datasets

    empty = datasets.Dataset.from_dict({"text": ["one two"]})
    datasets.DatasetDict({"train": empty, "validation": empty.select([])}).save_to_disk(str(tmp_path / "saved"))
    saved = f"task.data={tmp_path / 'saved'}"
    assert "is empty: the split" in refused(here, saved, "task.valid_split=validation")
    assert "no split 'tests'" in refused(here, saved, "task.split=tests")
    assert "the corpus is too small" in refused(here, saved)
    assert "a.jsonl is empty" in refused(here, lines(tmp_path / "a.jsonl"))
    (tmp_path / "none").mkdir()
    assert "holds no texts" in refused(here, f"task.data={tmp_path / 'none'}")
    lines(tmp_path / "mixed.jsonl", {"text": "one"})
    (tmp_path / "mixed.txt").write_text("one two\n")
    assert "mixes formats" in refused(here, f"task.data={tmp_path}")


def test_what_is_missing_while_offline(here, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "There is no model at './tinny'" in refused(here, "task.model=./tinny")
    said = refused(here, "task.model=someone/nothing")
    assert "is no file or folder here, no input, and not in the hub's cache, and this session is offline" in said
    (tmp_path / "data" / "counting-model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert "Did you mean 'counting-model'?" in refused(here, "task.model=conting-model")
    said = refused(here, "task.data=someone/nothing")
    assert "The data set 'someone/nothing' is no file or folder here" in said and "Add Input" in said


def test_model_and_tokenizer(here, tmp_path):
    assert "task.seq_len=129 is more than the 128 positions" in refused(here, "task.seq_len=129")
    tiny_lm.save_model(tmp_path / "endless")
    tiny_lm.save_tokenizer(tmp_path / "endless", end=None)
    said = refused(here, f"task.model={tmp_path / 'endless'}")
    assert "the tokenizer knows none" in said and "task.eos_token" in said
    (tmp_path / "no weights").mkdir()
    (tmp_path / "no weights/config.json").write_text("{}")
    assert "cannot be read" in refused(here, f"task.model={tmp_path / 'no weights'}")
    assert "lm has no option task.seqlen. Did you mean 'seq_len'?" in refused(here, "task.seqlen=4")


def test_what_breaks_in_the_middle_of_a_run_keeps_its_checkpoint(here, tmp_path):
    good = [{"text": text} for text in tiny_lm.texts(80)]
    data = tmp_path / "late.jsonl"
    lines(data, *good, '{"tex\n', *good)
    words = (
        f"task.model={here / 'tiny'}",
        f"task.data={data}",
        "task.seq_len=32",
        "task.valid=none",
        "data.samples_per_epoch=64",
        "data.micro_batch_size=4",
        "data.shuffle=false",
        "trainer.max_steps=16",
        "checkpoint.every_n_steps=2",
        "optimizer.name=adamw",
    )
    train = trainer_in(tmp_path)
    steps = []
    for threads in (0, 5):
        done = train(LanguageModel(), *words, f"dataloader.num_workers={threads}", name=f"threads-{threads}")
        assert done.status == "failed" and "late.jsonl, line 81, is no JSON" in done.reason
        steps.append(done.column("step", "step"))
        again = train(LanguageModel(), *words, "dataloader.num_workers=2", name=f"threads-{threads}", resume=True)
        assert again.status == "failed" and again.reason == done.reason  # it is not passed over at a resume
    assert steps[0] == steps[1] and len(steps[0]) > 2  # at the same step, however far texts are tokenized ahead
    done = train(LanguageModel(), *words)
    assert done.status == "failed" and "late.jsonl, line 81, is no JSON" in done.reason
    assert "task.bad_rows=skip" in done.reason
    assert any((done.folder / "checkpoints").glob("step-*"))
    again = train(LanguageModel(), *words, "task.bad_rows=skip", "resume.allow=[task.bad_rows]", resume=True)
    assert again.status == "completed", again.reason


def test_the_command_line_says_it_in_one_line(here, tmp_path):
    done = run_cli(tmp_path, "train", "lm", f"task.model={here / 'tiny'}", "task.data=./nowhere.jsonl")
    assert done.returncode == 2 and "There is no data set at './nowhere.jsonl'" in done.stderr
    assert "Traceback" not in done.stderr and not list(tmp_path.glob("runs/*/config.yaml"))
