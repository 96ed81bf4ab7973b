"""What can be wrong with texts, tokenizers and models: each in a sentence, before a step is taken; and what is found
only while a run is under way ends it with its checkpoint.
"""

import json
import shutil

import pytest
import torch

import tiny_lm
from helpers import run_cli, tree_hashes
from in_process import trainer_in
from spectrakit.checkpoint.store import find_checkpoint
from spectrakit.config.compose import compose
from spectrakit.lm.language_model import LanguageModel
from spectrakit.lm.pretrained import load_model
from spectrakit.system.errors import RequestError
from spectrakit.train.learner.model import make_model
from spectrakit.train.start.setup import read_datasets

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
        "b.jsonl, row 1, has no field 'text'; it has 'texto'." in said and "text_field=[text,texto] uses both" in said
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
    assert "has no text files" in refused(here, f"task.data={tmp_path / 'none'}")
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


def test_while_offline_the_hub_is_not_tried_again_and_again(here, monkeypatch):
    "Asked for what is not in its cache, `datasets` tries five times to reach the hub, for half a minute."
    import datasets

    asked = []
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setattr(datasets, "load_dataset", lambda *words, **more: asked.append(words))
    assert "this session is offline" in refused(here, "task.data=nobody/nothing") and not asked


def test_model_and_tokenizer(here, tmp_path):
    assert "task.seq_len=129 exceeds the 128 positions" in refused(here, "task.seq_len=129")
    tiny_lm.save_model(tmp_path / "endless")
    tiny_lm.save_tokenizer(tmp_path / "endless", end=None)
    said = refused(here, f"task.model={tmp_path / 'endless'}")
    assert "the tokenizer knows none" in said and "task.eos_token" in said
    (tmp_path / "no weights").mkdir()
    (tmp_path / "no weights/config.json").write_text("{}")
    assert "cannot be read" in refused(here, f"task.model={tmp_path / 'no weights'}")
    assert "lm has no option task.seqlen. Did you mean 'seq_len'?" in refused(here, "task.seqlen=4")


class Foreign:
    "What a stranger's pickle would call."

    def __reduce__(self):
        return print, ("it was executed",)


def spoiled(here, tmp_path, name: str, **config) -> str:
    "A copy of the model, with `config` changed: its folder, and the word that names it."
    folder = tmp_path / name
    shutil.copytree(here / "tiny", folder)
    known = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**known, **config}))
    return f"task.model={folder}"


def test_weights_that_are_not_what_they_should_be(here, tmp_path, capfd):
    from safetensors.torch import load_file, save_file

    pickled = spoiled(here, tmp_path, "pickled")
    (tmp_path / "pickled/model.safetensors").unlink()
    torch.save({"w": Foreign()}, tmp_path / "pickled/pytorch_model.bin")
    assert "its weights contain more than tensors, which is not executed; use weights that are saved as" in refused(
        here, pickled
    )
    lacking, name = spoiled(here, tmp_path, "lacking"), "model.layers.0.mlp.down_proj.weight"
    kept = {key: value for key, value in load_file(here / "tiny/model.safetensors").items() if key != name}
    save_file(kept, tmp_path / "lacking/model.safetensors", {"format": "pt"})
    assert f"1 of the model are missing ({name}), and would be random" in refused(here, lacking)
    torn = spoiled(here, tmp_path, "torn")
    (tmp_path / "torn/model.safetensors").write_bytes((here / "tiny/model.safetensors").read_bytes()[:-900])
    assert "cannot be read" in refused(here, torn)
    other = spoiled(here, tmp_path, "other", hidden_size=64)
    assert "the shapes of its weights differ from its config.json" in refused(here, other)
    code = {"model_type": "strange", "auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}}
    assert "it contains Python code, which is not executed" in refused(here, spoiled(here, tmp_path, "own", **code))
    assert "T5Config is not a causal language model" in refused(here, spoiled(here, tmp_path, "t5", model_type="t5"))
    assert "executed\n" not in capfd.readouterr().out


def test_a_folder_without_a_tokenizer_and_one_of_adapters(here, tmp_path):
    bare = spoiled(here, tmp_path, "bare")
    for file in (tmp_path / "bare").glob("token*"):
        file.unlink()
    assert "it has no tokenizer that the installed packages can read; save one there" in refused(here, bare)
    (tmp_path / "adapters").mkdir()
    (tmp_path / "adapters/adapter_config.json").write_text("{}")
    said = refused(here, f"task.model={tmp_path / 'adapters'}")
    assert "has adapters without the model that they were made for" in said and "lm export" in said


def test_rows_that_are_nearly_texts(here, tmp_path):
    good = [{"text": text} for text in tiny_lm.texts(70)]
    half = lines(tmp_path / "half.jsonl", *good, '{"text": "one \\ud800 two"}\n', *good)
    assert "half.jsonl, row 71, has half of a character ('\\ud800')" in refused(here, half)
    deep = lines(tmp_path / "deep.jsonl", *good, '{"text": ' + "[" * 100_000 + "\n", *good)
    assert "deep.jsonl, line 71, is no JSON" in refused(here, deep)
    first = lines(tmp_path / "first.jsonl", "{oops\n", {"text": 5}, *good, {"other": "one"}, *good)
    assert "first.jsonl, line 1, is no JSON" in refused(here, first)
    for data in (half, deep, first):
        config = compose(f"task.model={here / 'tiny'}", data, "task.seq_len=8", "task.bad_rows=skip", "task.valid=none")
        assert read_datasets(LanguageModel(), config)[0].samples == 390
    empty = lines(tmp_path / "empty.jsonl", *({"text": ""} for _ in range(9)))
    assert "empty.jsonl has no text: in its first 9 rows text (str) is empty" in refused(here, empty)
    chat = lines(tmp_path / "chat.jsonl", *({"messages": [{"role": "user", "content": "one"}]} for _ in range(9)))
    assert "apply the model's chat template" in refused(here, chat)


def test_tables_as_spreadsheets_write_them(here, tmp_path):
    texts = tiny_lm.texts(80)
    table = "text;id\n" + "".join(f"{text};{n}\n" for n, text in enumerate(texts))
    (tmp_path / "marked.csv").write_text(table, encoding="utf-8-sig")
    words = (f"task.model={here / 'tiny'}", "task.seq_len=8", "task.valid=none", "task.bad_rows=skip")
    config = compose(*words, f"task.data={tmp_path / 'marked.csv'}", "task.text_field=text")
    whole = read_datasets(LanguageModel(), config)[0].samples
    assert whole == -(-sum(len(text.split()) + 1 for text in texts) // 8)
    commas = "id,text\n" + "".join(f"{n},{text}\n" for n, text in enumerate(texts)) + "80,one two, three\n"
    (tmp_path / "commas.csv").write_text(commas)
    data = f"task.data={tmp_path / 'commas.csv'}"
    assert "commas.csv, row 81, has more fields than the first line names" in refused(here, data)
    assert read_datasets(LanguageModel(), compose(*words, data))[0].samples == whole


def test_lines_are_not_counted_for_rows_that_are_left_out(tmp_path, monkeypatch):
    from spectrakit.lm.documents import BadRow, open_files
    from spectrakit.lm.fields import find_text
    from spectrakit.lm.reading import DocumentReading, DocumentSource

    lines(tmp_path / "many.jsonl", {"text": "one"}, *['{"tex\n'] * 50, {"text": "two"})
    counted = []
    monkeypatch.setattr(BadRow, "__str__", lambda error: counted.append(error.reason()) or counted[-1])
    corpus = open_files(tmp_path / "many.jsonl")
    found, _ = find_text(corpus, skips_bad=True)
    assert DocumentReading(DocumentSource(corpus, found, skips_bad=True), 0).take(9) == ["one", "two"]
    assert counted == []  # each count reads the file from its beginning
    with pytest.raises(RequestError, match="many.jsonl, line 2, is no JSON"):
        find_text(corpus)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("task.template='{text'", "cannot be filled (expected '}' before end of string)"),
        ("task.template='{text.upper}'", "cannot be filled (only whole fields are supported)"),
        ("task.template='{}'", "cannot be filled"),
        ("task.text_field=5", "it needs a text, or several"),
        ("task.prompts=[1,2]", "it needs a text, or several"),
        ("task.lora_alpha=big", "it needs a number above 0"),
        ("task.lora_dropout=1", "it needs a number from 0 to 1"),
        ("task.pretrained=maybe", "it needs true or false"),
        ("task.eos_token=5", "it needs a text"),
    ],
)
def test_options_of_another_kind(here, word, said):
    assert said in refused(here, word)


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


def torn(parts):
    shard = parts / "part-001.parquet"
    shard.write_bytes(shard.read_bytes()[:-300])


def rewritten(parts):
    tiny_lm.save_parquet(parts.with_name("other"), rows=100)
    shutil.copyfile(parts.with_name("other") / "part-002.parquet", parts / "part-001.parquet")  # has as many rows


def shortened(parts):
    tiny_lm.save_parquet(parts.with_name("other"), rows=90)
    shutil.copyfile(parts.with_name("other") / "part-001.parquet", parts / "part-001.parquet")


CHANGES = {
    torn: "The shard part-001.parquet cannot be read",
    rewritten: "its files have changed",
    shortened: "its files have changed",
    lambda parts: (parts / "part-002.parquet").unlink(): "its files have changed",
    lambda parts: shutil.copyfile(parts / "part-002.parquet", parts / "part-003.parquet"): "its files have changed",
    lambda parts: (parts / "part-002.parquet").rename(parts / "part-009.parquet"): "its files have changed",
}


@pytest.mark.parametrize("change", CHANGES, ids=["torn", "rewritten", "shorter", "removed", "added", "renamed"])
def test_files_that_changed_before_a_resume_are_named_and_nothing_is_lost(here, tmp_path, change):
    parts = tiny_lm.save_parquet(tmp_path / "parts")
    words = (f"task.model={here / 'tiny'}", f"task.data={parts}", "task.seq_len=32", "task.valid=none")
    words = (*words, "data.samples_per_epoch=64", "data.micro_batch_size=4", "data.shuffle_buffer=9")
    train = trainer_in(tmp_path)
    assert train(LanguageModel(), *words, "trainer.max_steps=3", "data.shuffle=false").status == "completed"
    before = tree_hashes(tmp_path / "run/checkpoints")
    change(parts)
    with pytest.raises(RequestError) as caught:
        train(LanguageModel(), *words, "trainer.max_steps=6", "data.shuffle=false", resume=True)
    assert CHANGES[change] in str(caught.value)
    assert tree_hashes(tmp_path / "run/checkpoints") == before


def test_a_shard_that_is_torn_while_it_is_read_ends_the_run_with_its_checkpoint(here, tmp_path):
    parts = tiny_lm.save_parquet(tmp_path / "parts")

    class Tears(LanguageModel):
        def loss(self, model, batch, moment=None):
            if moment is not None and moment.step == 3:
                torn(parts)
            return super().loss(model, batch)

    words = (f"task.model={here / 'tiny'}", f"task.data={parts}", "task.seq_len=32", "task.valid=none")
    words = (*words, "data.shuffle=false", "data.micro_batch_size=4", "checkpoint.every_n_steps=2")
    done = trainer_in(tmp_path)(Tears(), *words, "trainer.max_steps=40", "optimizer.name=adamw")
    assert done.status == "failed" and "part-001.parquet is not a complete Parquet file" in done.reason
    steps = done.column("step", "step")
    assert len(steps) > 10, "what was read before is learned from"
    assert find_checkpoint(tmp_path / "run/checkpoints")[0].name == f"step-{steps[-1]:08d}"


def test_the_command_line_says_it_in_one_line(here, tmp_path):
    done = run_cli(tmp_path, "train", "lm", f"task.model={here / 'tiny'}", "task.data=./nowhere.jsonl")
    assert done.returncode == 2 and "There is no data set at './nowhere.jsonl'" in done.stderr
    assert "Traceback" not in done.stderr and not list(tmp_path.glob("runs/*/config.yaml"))


CODE = {
    "a kernel of the hub": {"_attn_implementation": "owner/kernel"},
    "a kernel in a part": {"text_config": {"attn_implementation": "owner/kernel:flash"}},
    "one for each part": {"attn_implementation": {"": "sdpa", "vision_config": "owner/kernel"}},
    "kernels of layers": {"kernel_config": {"RMSNorm": "owner/kernel:RMSNorm"}},
    "a quantizer with kernels": {"quantization_config": {"quant_method": "mxfp4"}},
}


@pytest.mark.parametrize("pretrained", [True, False])
@pytest.mark.parametrize("entry", CODE.values(), ids=CODE)
def test_a_model_that_names_code_of_others_is_refused_before_it_is_read(tmp_path, monkeypatch, entry, pretrained):
    tiny_lm.save_model(tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **entry}))
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", None)  # it would raise TypeError
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_config", None)
    with pytest.raises(RequestError, match="selects foreign code"):
        load_model(str(tmp_path / "model"), pretrained)


def test_an_attention_of_the_hub_is_refused(tmp_path):
    tiny_lm.save_model(tmp_path / "model")
    with pytest.raises(RequestError, match="attention='owner/kernel' is unknown"):
        load_model(str(tmp_path / "model"), attention="owner/kernel")
    assert load_model(str(tmp_path / "model"), attention="eager").config._attn_implementation == "eager"
