"""`task.subset` and `task.split` of local files, folders and saved data sets: the rows that they name, or a refusal."""

import gzip
import json

import pytest

import tiny_lm
from spectrakit.config.compose import compose
from spectrakit.lm.language_model import LanguageModel
from spectrakit.system.errors import RequestError

WORDS = tiny_lm.SYLLABLES[:40]  # a text is its number, written as a syllable


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("subsets")
    tiny_lm.save_model(folder / "tiny")
    return folder


def save(path, numbers):
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"text": f"one {WORDS[n]}"} for n in numbers]
    if path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=3)
    elif path.suffix == ".csv":
        path.write_text("text\n" + "".join(f"{row['text']}\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".txt":
        path.write_text("\n\n".join(row["text"] for row in rows) + "\n")
    else:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "wt") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def read(here, data, subset=None, *more: str, valid: bool = False) -> list[int]:
    "The numbers of the texts that are learned from, or validated on."
    given = [f"task.model={here / 'tiny'}", f"task.data={data}", "task.seq_len=8", "task.lengths=dynamic"]
    given += [] if subset is None else [f"task.subset='{subset}'"]
    given += more if valid else ["task.valid=none", *more]
    stream, held = LanguageModel().datasets(compose(*given, "data.shuffle=false"))
    rows = held.samples if valid else stream
    return [WORDS.index(tiny_lm.VOCABULARY[ids[1]]) for ids, _ in rows]


CUTS = {
    "train[:5]": range(5),
    "train[5:]": range(5, 20),
    "train[-3:]": range(17, 20),
    "train[:-15]": range(5),
    "train[10%:20%]": range(2, 4),
    "train[90%:]": range(18, 20),
    "train[:2]+train[18:]": [0, 1, 18, 19],
    "all[7:9]": [7, 8],
    "train": range(20),
}


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".txt", ".csv", ".json", ".parquet"])
@pytest.mark.parametrize("subset", CUTS)
def test_rows_of_a_file_are_those_that_are_named(here, tmp_path, ending, subset):
    file = save(tmp_path / f"texts{ending}", range(20))
    assert read(here, file, subset) == list(CUTS[subset])


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_rows_of_a_folder_are_counted_from_file_to_file(here, tmp_path, ending):
    for first in (0, 8, 16):
        save(tmp_path / "texts" / f"part-{first:02}{ending}", range(first, first + 8))
    for subset, wanted in (("train[5:10]", range(5, 10)), ("train[50%:]", range(12, 24)), ("train[-1:]", [23])):
        assert read(here, tmp_path / "texts", subset) == list(wanted)
    assert read(here, tmp_path / "texts", None, "task.split='train[7:9]'") == [7, 8]


def test_a_folder_in_that_of_the_data_is_a_subset_and_may_be_cut_too(here, tmp_path):
    save(tmp_path / "data/sample/10BT/a.jsonl", range(3))
    save(tmp_path / "data/english/a.jsonl", range(3, 9))
    save(tmp_path / "data/german.jsonl", range(9, 12))
    for subset, wanted in (
        ("english", range(3, 9)),
        ("sample/10BT", range(3)),
        ("sample-10BT", range(3)),
        ("sample", range(3)),
        ("german", range(9, 12)),
        ("english[2:4]", [5, 6]),
        ("english[50%:]", [6, 7, 8]),
    ):
        assert read(here, tmp_path / "data", subset) == list(wanted), subset


SPLITS = {
    "by file": {"train": "train.jsonl", "validation": "dev.jsonl", "test": "test.jsonl"},
    "by number": {
        "train": "train-00000-of-00001.jsonl",
        "validation": "validation-00000.jsonl",
        "test": "test-0.jsonl",
    },
    "by folder": {"train": "training/a.jsonl", "validation": "val/a.jsonl", "test": "eval/a.jsonl"},
    "the rest trains": {"train": "texts.jsonl", "validation": "my_valid.jsonl", "test": "test.jsonl"},
}


@pytest.mark.parametrize("names", SPLITS.values(), ids=SPLITS)
def test_splits_are_told_by_the_names_of_files_and_folders(here, tmp_path, names):
    for first, file in enumerate(names.values()):
        save(tmp_path / "data" / file, range(10 * first, 10 * first + 4))
    data = tmp_path / "data"
    assert read(here, data, "validation") == [10, 11, 12, 13] == read(here, data, "valid")
    assert read(here, data, "test[1:3]") == [21, 22] == read(here, data, None, "task.split='test[1:3]'")
    assert read(here, data, "train[:2]+validation[:1]") == [0, 1, 10]
    assert read(here, data, "all[3:5]") == sorted(read(here, data))[3:5] or len(read(here, data, "all[3:5]")) == 2
    assert len(read(here, data)) == 12  # nothing is named: all of them, as before
    validated = "task.valid_split=validation"
    assert read(here, data, None, validated) == [0, 1, 2, 3]
    assert read(here, data, None, validated, valid=True) == [10, 11, 12, 13]


@pytest.mark.parametrize(
    ("subset", "said"),
    [
        ("english", "has no part 'english'.*there are german.*folder"),
        ("germn", "Did you mean 'german'"),
        ("validation", "has no split 'validation'.*names give train"),
        ("test[:3]", "has no split 'test'"),
        ("train[:500]", r"selects rows that do not exist: data has 6 in 'train'"),
        ("train[6:]", "selects rows that do not exist"),
        ("train[4:2]", "selects rows that do not exist"),
        ("train[5]", r"'train\[5\]' is not a part of a data set"),
        ("train[a:b]", "is not a part of a data set"),
        ("../other", "has no part '../other'"),
    ],
)
def test_what_is_not_there_is_refused_in_a_sentence(here, tmp_path, subset, said):
    save(tmp_path / "data/german/a.jsonl", range(6))
    save(tmp_path / "other/a.jsonl", range(6))
    with pytest.raises(RequestError, match=f"(?s){said}"):
        read(here, tmp_path / "data", subset)


def test_a_file_alone_has_no_validation_split(here, tmp_path):
    file = save(tmp_path / "texts.jsonl", range(6))
    for more in (("task.subset=validation",), ("task.split=test",), ("task.valid_split=validation",)):
        with pytest.raises(RequestError, match="has no split"):
            read(here, file, None, *more, valid=True)
    with pytest.raises(RequestError, match="'english'"):
        read(here, file, "english")


def test_saved_data_sets_are_cut_and_refused_in_the_same_words(here, tmp_path):
    import datasets

    made = {n: datasets.Dataset.from_dict({"text": [f"one {WORDS[k]}" for k in range(n, n + 6)]}) for n in (0, 10)}
    datasets.DatasetDict({"train": made[0], "english": made[10]}).save_to_disk(str(tmp_path / "both"))
    made[0].save_to_disk(str(tmp_path / "alone"))
    for subset, wanted in (
        ("train[:2]", [0, 1]),
        ("english", range(10, 16)),
        ("english[-1:]", [15]),
        ("train[50%:]+train[:1]", [3, 4, 5, 0]),
        (None, range(6)),
    ):
        assert read(here, tmp_path / "both", subset) == list(wanted), subset
    assert read(here, tmp_path / "alone", "train[2:4]") == [2, 3]
    for data, subset in (("both", "german"), ("both", "validation"), ("alone", "english"), ("both", "train[:99]")):
        with pytest.raises(RequestError, match="has no split|fewer than requested"):
            read(here, tmp_path / data, subset)


def test_bad_rows_count_as_rows_and_a_cut_goes_on_where_it_was(here, tmp_path):
    lines = [json.dumps({"text": f"one {WORDS[n]}"}) for n in range(10)]
    lines[3] = "{broken"
    (tmp_path / "bad.jsonl").write_text("\n".join(lines))
    assert read(here, tmp_path / "bad.jsonl", "train[2:6]", "task.bad_rows=skip") == [2, 4, 5]
    given = [f"task.model={here / 'tiny'}", f"task.data={tmp_path / 'bad.jsonl'}", "task.bad_rows=skip"]
    given += ["task.subset='train[4:9]'", "task.valid=none", "task.lengths=dynamic", "task.seq_len=8"]
    stream, _ = LanguageModel().datasets(compose(*given, "data.shuffle=false"))
    reading = stream.reading(0)
    before = [next(reading)[0].tolist() for _ in range(2)]
    later = stream.reading(0, reading.state())
    assert before + [ids.tolist() for ids, _ in later] == [ids.tolist() for ids, _ in stream]
    assert stream.files_hash and stream.samples_per_epoch == 5
