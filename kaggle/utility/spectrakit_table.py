"""Learn from a competition's table and write its submission: `Table`, a task for spectrakit.

A utility script for Kaggle, and a plain module anywhere else. A folder holds train, test and a sample submission, as
CSV or Parquet. What is asked for is read off the sample submission: its columns that the test has are ids, the others
are the answer.

    import spectrakit as sk
    from spectrakit_table import Table
    task = Table("coffee-table")                       # the slug of a data set or competition, or a folder
    print(task.describe(cfg))                          # what was found, and what was left out
    run = sk.fit(task, cfg, resume="auto", predict="submission.csv")

Every option of `Table.options` is a setting: `task.group=patient`, `task.net=conv`.
"""

# Installs spectrakit where it is missing, from the wheels that are named here, compared before anything of them runs.
WHEELS = "spectrakit-wheels"  # the attached data set, or the folder on Drive
SHA256 = ""  # of its wheelhouse.json; `spectrakit kaggle push` writes it in
NETWORK = ""  # what pip is to fetch where no wheels are attached, such as "spectrakit-train[demo]"


def install_spectrakit():
    import hashlib
    import importlib.util
    import json
    import runpy
    import subprocess
    import sys
    from pathlib import Path

    spec = importlib.util.find_spec("spectrakit")
    if spec and spec.origin:  # without: a folder of data with that name
        if Path(spec.origin).with_name("offline").is_dir():
            return
        mend = "Rename that folder, or remove what brought it: pip uninstall pyspectrakit"
        raise ImportError(f"{spec.origin} is another package named spectrakit. {mend}")
    depths, lists = ("", "*/", "*/*/", "*/*/*/"), {}
    found = [file for d in depths for file in Path("/kaggle/input").glob(f"{d}{WHEELS}/wheelhouse.json")]
    for file in sorted([*found, *Path("/content/drive/MyDrive").glob(f"{WHEELS}/wheelhouse.json")]):
        with open(file, "rb") as source:
            text = source.read(1 << 20)
        lists[hashlib.sha256(text).hexdigest()] = file, text
    if SHA256 in lists:
        file, text = lists[SHA256]
        installer = file.with_name("install.py")
        if hashlib.sha256(installer.read_bytes()).hexdigest() != json.loads(text).get("installer"):
            raise ImportError(f"{installer} is not the one that is listed. Upload the folder again, as it was built.")
        runpy.run_path(str(installer))["install"](sha256=SHA256)
    elif lists:
        sha256, (file, _) = max(lists.items(), key=lambda one: one[1])
        wrong = "is not the list of wheels that SHA256 names" if SHA256 else "may be anybody's: SHA256 names no wheels"
        raise ImportError(f'{file} {wrong}. If these wheels are yours, write into this cell: SHA256 = "{sha256}"')
    elif NETWORK:
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", NETWORK], check=True)
    else:
        mend = "Attach that data set (Add Input), or say in NETWORK what pip is to fetch."
        raise ImportError(f"spectrakit is missing, and there is no {WHEELS}/wheelhouse.json. {mend}")
    importlib.invalidate_caches()


install_spectrakit()

import json
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import spectrakit as sk
from spectrakit.system.errors import did_you_mean
from spectrakit.tasks.spectra import fold_of_samples, int_option

KINDS = ("auto", "classes", "numbers")
ANSWERS = ("auto", "label", "probability")
NETS = ("mlp", "conv")
MOSTLY = 0.9  # of a column's texts are numbers: then the others are mistakes
FEW = 20  # distinct whole numbers at most are classes
ONE_HOT = 8  # levels at most are one input each; more get an embedding
FURTHEST = 10.0  # standard deviations: an outlier counts no more than this


# --- the folder and its tables ----------------------------------------------------------------------------------------


def find_folder(data: str) -> Path:
    """The folder that holds the tables: a path, or the slug of an input on Kaggle, Colab or at home.

    RequestError where there is none.
    """
    path = Path(str(data)).expanduser()
    if path.is_dir():
        return path
    if path.is_absolute() or str(data).startswith((".", "~")):
        raise sk.RequestError(f"task.data={data} is no folder. Name one, or the slug of an input.")
    try:
        folder = sk.find_input(str(data))
        return folder if _file(folder, "train") else sk.find_input(str(data), "train.*")
    except (FileNotFoundError, ValueError) as error:
        raise sk.RequestError(f"task.data={data}: {error}") from None


def _file(folder: Path, name: str) -> Path | None:
    "The table `name` in a folder: Parquet, which knows types, before CSV."
    return next((path for end in ("parquet", "csv", "csv.gz") if (path := folder / f"{name}.{end}").is_file()), None)


def _sample_file(folder: Path) -> Path | None:
    "The sample submission, however it is called: sample_submission, sampleSubmission, gender_submission."
    found = sorted(
        path
        for end in ("parquet", "csv", "csv.gz")
        for path in folder.glob(f"*.{end}")
        if "submission" in (name := path.name.lower()) and not name.startswith("submission.")
    )
    return min(found, key=lambda path: (not path.name.lower().startswith("sample"), found.index(path)), default=None)


def read_table(path: Path) -> Any:
    "A CSV or Parquet file as a pandas table with a plain index. RequestError where it is none, or has no rows."
    try:
        import pandas
    except ImportError:
        raise sk.RequestError("Tables are read with pandas, which is not installed. Run: pip install pandas") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pandas.errors.DtypeWarning)  # mixed columns are looked at below
            table = pandas.read_parquet(path) if path.suffix == ".parquet" else pandas.read_csv(path)
    except ImportError:
        raise sk.RequestError(f"{path.name} needs pyarrow, which is not installed. Install it, or write CSV.") from None
    except pandas.errors.EmptyDataError:
        raise sk.RequestError(f"{path.name} is empty. Look at how it was written.") from None
    except (ValueError, OSError) as error:  # a parser's error is a ValueError, and so is Arrow's
        reason = " ".join(str(error).split())[:200]
        raise sk.RequestError(f"{path.name} cannot be read as a table: {reason}. Look at how it was written.") from None
    if len(table) == 0:
        raise sk.RequestError(f"{path.name} has no rows. Look at how it was written.")
    table.columns = [str(name) for name in table.columns]
    if doubled := table.columns[table.columns.duplicated()].tolist():
        raise sk.RequestError(f"{path.name} has the column {doubled[0]!r} twice. Rename one of them.")
    return table.reset_index(drop=True)


# --- what is asked for ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """What a sample submission asks for.

    `columns`: its own, in order; `kind`: classes, labels (several yes or no) or numbers.
    """

    columns: list[str]
    ids: list[str]
    asked: list[str]  # the columns of the sample that are to be filled
    targets: list[str]  # the columns of train that say the answer
    kind: str
    classes: list = field(default_factory=list)
    answer: str = "numbers"  # classes (a column for each), label, probability, or numbers
    notes: list[str] = field(default_factory=list)


def ask(train: Any, test: Any, sample: Any, options: dict[str, Any]) -> Question:
    "Read off the sample submission what is asked for. RequestError where train does not say it."
    columns, notes = list(sample.columns), []
    ids = _ids(columns, test, options["id"])
    if not ids:
        if len(sample) != len(test):
            raise sk.RequestError(
                f"No column of the sample submission ({_few(columns)}) is in the test table, "
                f"which has {len(test)} rows "
                f"to its {len(sample)}. Name the column that both have: task.id=COLUMN."
            )
        ids = columns[:1]
        notes.append(f"the test table has no {ids[0]!r}; its rows are taken to be in the sample submission's order")
    asked = [name for name in columns if name not in ids]
    if not asked:
        raise sk.RequestError(
            f"The sample submission asks for nothing: it has no column besides {_few(ids)}. Look at the file."
        )
    targets, classes = _targets(train, test, asked, options["target"])
    unknown = [one for one in classes if one not in {_plain(value) for value in train[targets[0]].dropna().unique()}]
    if unknown:
        notes.append(f"no row of the training table is of class {_few(unknown)}")
    return _settled(Question(columns, ids, asked, targets, "", classes, notes=notes), train, sample, options)


def _ids(columns: list[str], test: Any, told: str | None) -> list[str]:
    if told is not None:
        if told in columns:
            return [told]
        hint = did_you_mean(told, columns) or f" It has {_few(columns)}."
        raise sk.RequestError(f"task.id={told} is no column of the sample submission.{hint}")
    found = [name for name in columns if name in test.columns]
    return found if len(found) < len(columns) else columns[:1]  # a test table with an empty target column


def _targets(train: Any, test: Any, asked: list[str], told: str | None) -> tuple[list[str], list]:
    "The columns of train that answer, and the classes where `asked` has a column for each."
    if told is not None and told not in train.columns:
        raise sk.RequestError(f"task.target={told} is no column of the training table.{_hint(told, train)}")
    if told is None and all(name in train.columns for name in asked):
        return asked, []
    own = [name for name in train.columns if name not in test.columns]
    for name in [told] if told is not None else own:
        if classes := _class_columns(train[name], name, asked):
            return [name], classes
    if told is not None and len(asked) == 1:
        return [told], []
    missing = [name for name in asked if name not in train.columns]
    hint = " Name the target: task.target=COLUMN."
    if len(own) == 1:
        hint = f" It has {own[0]!r}, which the test table has not: if that is the target, say task.target={own[0]}."
    raise sk.RequestError(
        f"The training table has no target: the sample submission asks for {_few(missing)}, which is neither a column "
        f"of it nor a class in one.{hint}"
    )


def _hint(name: Any, table: Any) -> str:
    return did_you_mean(str(name), list(table.columns)) or f" It has {_few(table.columns)}."


def _class_columns(column: Any, name: str, asked: list[str]) -> list:
    "The classes in the order of `asked`, where its columns are called by them, such as C or Status_C; else none."
    values = column.dropna().unique()
    if not 2 <= len(values) <= 10_000 or len(asked) < 2:
        return []
    spellings = (str, f"{name}_{{}}".format, lambda value: str(value).lower().replace(" ", "_"))
    for spelling in spellings:
        by_name = {spelling(_plain(value)): _plain(value) for value in values}
        if set(by_name) <= set(asked) and len(by_name) == len(values) >= len(asked) - 1:
            return [by_name.get(name, name) for name in asked]
    return []


def _plain(value: Any) -> Any:
    "A value as Python has it; a whole number that was read as a float because others are missing is whole again."
    value = value.item() if hasattr(value, "item") else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _settled(q: Question, train: Any, sample: Any, options: dict[str, Any]) -> Question:
    "The question with its kind and the form of its answer."
    from pandas.api.types import is_float_dtype

    kind, answer = (_choice(options, name, known) for name, known in (("kind", KINDS), ("answer", ANSWERS)))
    if q.classes:
        return replace(q, kind="classes", answer="classes")
    floats = all(is_float_dtype(sample[name]) for name in q.asked)
    if len(q.targets) > 1:
        return _settled_several(q, train, kind, answer, floats)
    name, column = q.targets[0], train[q.targets[0]]
    values = sorted(
        {_plain(value) for value in column.dropna().unique()}, key=lambda value: (isinstance(value, str), value)
    )
    rows, numeric = int(column.notna().sum()), _is_number(column)
    whole = numeric and all(isinstance(value, int) for value in values) and len(values) <= min(FEW, rows / 3)
    if kind == "numbers" and not numeric:
        raise sk.RequestError(
            f"task.kind=numbers is not possible: the target {name!r} holds {_few(values[:1]) or 'nothing'}. "
            "Use task.kind=classes."
        )
    if kind == "numbers" or (kind == "auto" and numeric and values and not whole):
        return replace(q, kind="numbers")
    if len(values) < 2:
        raise sk.RequestError(
            f"The target {name!r} has {'only one value' if values else 'no value'}. There is nothing to learn from it."
        )
    if len(values) > max(2, rows / 2):
        raise sk.RequestError(
            f"The target {name!r} has {len(values)} different values in {rows} rows, which are no classes. "
            "Name another: task.target=COLUMN."
        )
    if answer == "probability" and len(values) != 2:
        raise sk.RequestError(
            f"task.answer=probability needs two classes, and {name!r} has {len(values)}. Use task.answer=label."
        )
    if answer == "auto":
        answer = "probability" if floats and len(values) == 2 else "label"
    return replace(q, kind="classes", classes=values, answer=answer)


def _settled_several(q: Question, train: Any, kind: str, answer: str, floats: bool) -> Question:
    "The same for several targets: numbers, or several yes or no."
    if text := [name for name in q.targets if not _is_number(train[name])]:
        raise sk.RequestError(
            f"Several targets have to be numbers, and {text[0]!r} is not. Choose one: task.target=COLUMN."
        )
    flags = all(set(train[name].dropna().unique()) <= {0, 1} for name in q.targets)
    if kind == "numbers" or (kind == "auto" and not flags):
        return replace(q, kind="numbers")
    if not flags:
        raise sk.RequestError(
            "task.kind=classes is not possible for several targets unless each is 0 or 1. Use task.kind=numbers."
        )
    return replace(q, kind="labels", answer=answer if answer != "auto" else "probability" if floats else "label")


def _choice(options: dict[str, Any], name: str, known: tuple[str, ...]) -> str:
    if options[name] in known:
        return options[name]
    raise sk.RequestError(
        f"task.{name}={options[name]} is not possible.{did_you_mean(str(options[name]), known) or ''} It is "
        f"one of {', '.join(known)}."
    )


def _is_number(column: Any) -> bool:
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    return is_numeric_dtype(column) and not is_bool_dtype(column)


def _few(names: list) -> str:
    return ", ".join(repr(name) for name in list(names)[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


# --- columns as numbers -----------------------------------------------------------------------------------------------


def as_numbers(column: Any) -> tuple[np.ndarray, Any]:
    "Values as float64, NaN where one is missing or infinite, and the texts that are no numbers."
    import pandas

    if pandas.api.types.is_datetime64_any_dtype(column):
        seconds = (column - pandas.Timestamp(0, tz=column.dt.tz)).dt.total_seconds()
        return seconds.to_numpy(np.float64, na_value=np.nan), column[:0]
    values = pandas.to_numeric(column, errors="coerce")
    given = column.notna() & (column.astype(str).str.strip() != "")
    wrong = column[given & values.isna()]
    values = values.to_numpy(np.float64, na_value=np.nan)
    return np.where(np.isfinite(values), values, np.nan), wrong


@dataclass(frozen=True)
class Columns:
    """How the columns become inputs: `numbers` (mean and spread in training), `gaps` (a flag where one is missing),
    `levels` (text → code from 1 on).
    """

    numbers: list[str]
    centre: np.ndarray
    spread: np.ndarray
    gaps: list[str]
    levels: dict[str, list[str]]

    def encode(self, table: Any, where: str, notes: list[str]) -> np.ndarray:
        """Inputs float32 [rows, numbers + gaps + levels]: in standard deviations, 0 for what is missing; then flags;
        then codes, 0 for what is new.
        """
        gaps = {name: len(self.numbers) + place for place, name in enumerate(self.gaps)}
        out = np.empty((len(table), len(self.numbers) + len(gaps) + len(self.levels)), np.float32)
        for place, name in enumerate(self.numbers):
            values, wrong = as_numbers(table[name])
            if len(wrong):
                _tell_wrong(name, table[name], wrong, where, notes)
            absent = np.isnan(values)
            if name in gaps:
                out[:, gaps[name]] = absent
            out[:, place] = np.where(
                absent, 0, np.clip((values - self.centre[place]) / self.spread[place], -FURTHEST, FURTHEST)
            )
        for place, (name, known) in enumerate(self.levels.items(), len(self.numbers) + len(gaps)):
            out[:, place] = (
                table[name].map(_as_text).map({level: code for code, level in enumerate(known, 1)}).fillna(0)
            )
        return out


def _tell_wrong(name: str, column: Any, wrong: Any, where: str, notes: list[str]) -> None:
    "Note that texts count as missing numbers; RequestError where the whole column is text."
    example = f"such as {str(wrong.iloc[0])!r}"
    if len(wrong) == column.notna().sum():
        raise sk.RequestError(
            f"{name!r} of {where} holds text, {example}, and numbers in the other table. Mend it, "
            f"or leave it out: task.drop=[{name}]."
        )
    notes.append(
        f"{name!r} of {where} has {len(wrong)} text{'s' * (len(wrong) > 1)} among its numbers, {example}, "
        "which count as missing"
    )


def _as_text(value: Any) -> str | None:
    return None if value is None or value != value else str(value)


def look_at_columns(
    table: Any, rows: np.ndarray, names: list[str], options: dict[str, Any], notes: list[str]
) -> Columns:
    """Decide from the training `rows` how the columns `names` become inputs.

    RequestError where numbers are mixed with text, or nothing is left.
    """
    numbers, gaps, levels = {}, [], {}
    refuse = _choice(options, "bad_numbers", ("refuse", "missing")) == "refuse"
    for name in names:
        values, wrong = as_numbers(table[name])
        given = int(table[name].notna().sum())
        is_text = not _is_number(table[name]) and len(wrong) > (1 - MOSTLY) * given
        if len(wrong) and not is_text and refuse:
            example = f"{str(wrong.iloc[0])!r} in row {wrong.index[0] + 1} ({len(wrong)} of {given})"
            raise sk.RequestError(
                f"Column {name!r} of the training table holds text where numbers are: {example}. Mend it, "
                "leave it out with "
                f"task.drop=[{name}], or let it count as missing: task.bad_numbers=missing."
            )
        if given == 0 or (not is_text and np.isnan(values[rows]).all()):
            notes.append(f"{name!r} is left out: it has no value in training")
        elif is_text:
            levels[name] = sorted(set(filter(None, table[name].iloc[rows].map(_as_text))))
            if (found := len(levels[name])) > options["max_categories"]:
                del levels[name]
                notes.append(
                    f"{name!r} is left out: it has {found} different texts, more than "
                    f"task.max_categories={options['max_categories']}"
                )
        else:
            seen, some = values[rows], np.isnan(values[rows]).any()
            middle, width = np.nanmean(seen), np.nanstd(seen)
            flat = width <= 1e-12 * max(1.0, abs(middle))
            if flat and not some:
                notes.append(f"{name!r} is left out: it is {middle:g} throughout")
            else:
                numbers[name] = middle, 1.0 if flat else width
                if some:
                    gaps.append(name)
    if not numbers and not levels:
        raise sk.RequestError(
            f"No column is left to learn from. {' '.join(note[0].upper() + note[1:] + '.' for note in notes[:5])}"
        )
    centre, spread = np.array(list(numbers.values())).reshape(-1, 2).T
    return Columns(list(numbers), centre, spread, gaps, levels)


def folds_of(targets: np.ndarray, groups: np.ndarray | None, folds: int) -> np.ndarray:
    """The fold of each row.

    Equal targets are dealt out evenly; rows of one group stay together, and large groups are dealt out first.
    """
    if groups is None:
        return fold_of_samples(targets, folds)
    _, group = np.unique(groups.astype(str), return_inverse=True)
    if group.max() + 1 < folds:
        raise sk.RequestError(
            f"task.folds={folds} is not possible: the rows are of {group.max() + 1} "
            f"group{'s' * (group.max() > 0)} only. Use fewer folds."
        )
    values, part = np.unique(targets, return_inverse=True)
    if len(values) > FEW:
        part = np.digitize(
            targets, np.quantile(targets, [0.2, 0.4, 0.6, 0.8])
        )  # numbers count by the fifth in which they lie
    counts = np.zeros((group.max() + 1, part.max() + 1))
    np.add.at(counts, (group, part), 1)
    order = np.random.default_rng(0).permutation(len(counts))
    held, fold_of_group = np.zeros((folds, counts.shape[1])), np.empty(len(counts), int)
    for g in order[np.argsort(-counts[order].sum(axis=1), kind="stable")]:
        fold_of_group[g] = min(
            range(folds), key=lambda f: (((held[f] + counts[g]) ** 2 - held[f] ** 2).sum(), held[f].sum(), f)
        )
        held[fold_of_group[g]] += counts[g]
    return fold_of_group[group]


# --- the model --------------------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Inputs of `Columns.encode` → scores of classes, or targets in standard deviations.

    It remembers what columns it was made for.
    """

    def __init__(self, columns: Columns, question: Question, outputs: int, options: dict[str, Any]):
        super().__init__()
        self.numbers, self.plain = len(columns.numbers), len(columns.numbers) + len(columns.gaps)
        sizes = [len(known) + 1 for known in columns.levels.values()]
        self.one_hot = [size if size <= ONE_HOT + 1 else 0 for size in sizes]
        self.embeddings = nn.ModuleList(
            nn.Embedding(size, min(16, size // 2))
            for size, short in zip(sizes, self.one_hot, strict=False)
            if not short
        )
        found = self.plain - self.numbers + sum(self.one_hot) + sum(e.embedding_dim for e in self.embeddings)
        self.signal = _signal_net(self.numbers) if options["net"] == "conv" else nn.Identity()
        with torch.no_grad():
            found += self.signal(torch.zeros(1, self.numbers)).shape[1]
        blocks, width = [], found
        for _ in range(options["layers"]):
            blocks += [
                nn.Linear(width, options["hidden"]),
                nn.LayerNorm(options["hidden"]),
                nn.GELU(),
                nn.Dropout(options["dropout"]),
            ]
            width = options["hidden"]
        self.head = nn.Sequential(*blocks, nn.Linear(width, outputs))
        told = {
            "columns": columns.numbers,
            "missing values": columns.gaps,
            "categories": columns.levels,
            "targets": question.targets,
            "classes": question.classes,
        }
        self.register_buffer("made_for", torch.tensor(list(json.dumps(told, default=str).encode()), dtype=torch.uint8))
        self.register_buffer("centre", torch.tensor(columns.centre, dtype=torch.float32))
        self.register_buffer("spread", torch.tensor(columns.spread, dtype=torch.float32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts, embeddings = [self.signal(x[:, : self.numbers]), x[:, self.numbers : self.plain]], iter(self.embeddings)
        for place, size in enumerate(self.one_hot):
            code = x[:, self.plain + place].long()
            parts.append(F.one_hot(code, size).to(x.dtype) if size else next(embeddings)(code))
        return self.head(torch.cat(parts, dim=1))

    def _load_from_state_dict(self, state: dict, prefix: str, *rest: Any) -> None:
        "Weights for other columns are refused in words, before the shapes are compared."
        if f"{prefix}made_for" in state and (why := self._differs(state, prefix)):
            rest[-1].append(why)
        super()._load_from_state_dict(state, prefix, *rest)

    def _differs(self, state: dict, prefix: str) -> str:
        then, now = (json.loads(bytes(told.tolist())) for told in (state[f"{prefix}made_for"], self.made_for))
        for name in then:
            if then[name] == now.get(name):
                continue
            gone, new = [
                [repr(n) for n in one if n not in other]
                for one, other in ((then[name], now[name]), (now[name], then[name]))
            ]
            words = [f"{', '.join(names[:3])} {what}" for names, what in ((gone, "gone"), (new, "new")) if names]
            return f"the tables have other {name} than in training: {'; '.join(words) or 'in another order'}"
        same = all(
            torch.allclose(state[prefix + name].cpu(), getattr(self, name).cpu(), rtol=1e-3)
            for name in ("centre", "spread")
        )
        return "" if same else "the training table, or its split, is not the one of the run"


def _signal_net(channels: int, width: int = 16) -> nn.Module:
    "A small 1-D convolutional network: [batch, channels] → features [batch, …]."
    if channels < 16:
        raise sk.RequestError(
            f"task.net=conv is for ordered columns, such as a spectrum's, and there are only {channels} numbers. "
            "Use task.net=mlp."
        )

    def block(inputs: int, kernel: int, stride: int) -> list[nn.Module]:
        return [nn.Conv1d(inputs, width, kernel, stride=stride, padding=kernel // 2), nn.GroupNorm(4, width), nn.GELU()]

    strides = 2, 4 if channels >= 64 else 1, 4 if channels >= 256 else 1
    layers = [
        layer
        for kernel, stride, inputs in zip((15, 9, 5), strides, (1, width, width), strict=False)
        for layer in block(inputs, kernel, stride)
    ]
    return nn.Sequential(nn.Unflatten(1, (1, -1)), *layers, nn.Flatten())


# --- the task ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Known:
    "All that the tables say, as arrays."

    question: Question
    columns: Columns
    x: np.ndarray  # [rows, inputs]
    y: np.ndarray  # codes [rows], or [rows, targets]
    held_out: np.ndarray  # bool [rows]
    x_test: np.ndarray
    ids: Any  # the table of ids that the submission begins with
    order: np.ndarray  # the row of the test for each row of the submission
    centre: np.ndarray  # of the targets, where they are numbers
    spread: np.ndarray
    notes: list[str]


class Table(sk.Task):
    """Learn a table's target from its other columns, and answer as the sample submission asks.

    `data`: the slug of an input, or a folder. Options as keywords or as settings: `Table("titanic", folds=10)` is
    `task.folds=10`.
    """

    options: ClassVar[dict[str, Any]] = {
        "data": "coffee-table",  # slug of a data set or competition, or a folder
        "id": None,  # column of the ids; None: those that sample submission and test have in common
        "target": None,  # column of train to learn; None: as the sample submission's columns say
        "kind": "auto",  # classes or numbers
        "answer": "auto",  # label or probability, for two classes in one column
        "group": None,  # column of train whose equal values stay on one side of the split; rows of one id always do
        "fold": 0,  # which fold is held out; -1: none
        "folds": 5,
        "drop": [],  # columns to leave out
        "bad_numbers": "refuse",  # texts among the numbers of train: refuse, or count as missing
        "max_categories": 256,  # a text column with more different texts is left out
        "net": "mlp",  # mlp, or conv where the numeric columns are ordered, as in a spectrum
        "hidden": 128,
        "layers": 2,
        "dropout": 0.1,
    }

    def __init__(self, data: str | Path | None = None, **options: Any):
        for name in options:
            if name not in Table.options:
                raise sk.RequestError(f"Table has no option {name!r}.{did_you_mean(name, list(Table.options))}")
        self.options = {**Table.options, **options, **({} if data is None else {"data": str(data)})}
        self._known: tuple[dict, Known] | None = None

    def __getstate__(self) -> dict:
        return {"options": self.options, "_known": None}  # a child reads the tables itself

    def known(self, cfg: sk.Config) -> Known:
        "The tables as arrays; read once. RequestError where they cannot be used."
        options = {name: self.option(cfg, name) for name in self.options}
        if self._known is None or self._known[0] != options:
            self._known = options, read(self, cfg, options)
        return self._known[1]

    @property
    def _now(self) -> Known:
        if self._known is None:
            raise sk.RequestError(
                "This Table has not read anything yet. Call task.model(cfg) or task.known(cfg) first."
            )
        return self._known[1]

    def describe(self, cfg: sk.Config) -> str:
        "What was found in the tables, and what was left out, as lines for people."
        k, q = self.known(cfg), self._now.question
        what = {
            "classes": f"{len(q.classes)} classes, {_few(q.classes)}",
            "labels": "yes or no",
            "numbers": "as a number",
        }[q.kind]
        answer = {
            "classes": "a probability for each class",
            "label": "the label",
            "numbers": "the number",
            "probability": f"the probability of {q.classes[1]!r}" if q.classes else "a probability each",
        }[q.answer]
        rows = f"{len(k.y)} to learn from, of which {int(k.held_out.sum())} are held out; {len(k.x_test)} to answer"
        inputs = (
            f"columns of numbers: {len(k.columns.numbers)}, with gaps: {len(k.columns.gaps)}; of text: "
            f"{len(k.columns.levels)}"
        )
        return "\n".join(
            [
                f"rows      {rows}",
                f"target    {_few(q.targets)}: {what}",
                f"inputs    {inputs}",
                f"answer    {_few(q.columns)}: by {_few(q.ids)}, {answer}",
                *(f"note      {note}" for note in k.notes),
            ]
        )

    def datasets(self, cfg: sk.Config) -> tuple:
        "Rows to train on and held-out rows; each sample: (inputs, target)."
        k = self.known(cfg)
        parts = [
            TensorDataset(torch.from_numpy(k.x[rows]), torch.from_numpy(k.y[rows]))
            for rows in (~k.held_out, k.held_out)
        ]
        return parts[0], parts[1] if len(parts[1]) else None

    def model(self, cfg: sk.Config) -> nn.Module:
        "A small network, with or without convolutions in front."
        k = self.known(cfg)
        net, dropout = _choice(self._known[0], "net", NETS), self.option(cfg, "dropout")
        if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
            raise sk.RequestError(f"task.dropout={dropout} is not possible. It needs a number from 0 to below 1.")
        outputs = len(k.question.classes) if k.question.kind == "classes" else k.y.shape[1]
        hidden, layers = int_option(self, cfg, "hidden", 1, 16_384), int_option(self, cfg, "layers", 0, 64)
        return Net(
            k.columns, k.question, outputs, {"net": net, "hidden": hidden, "layers": layers, "dropout": float(dropout)}
        )

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        "Cross-entropy, or the squared error in standard deviations of the targets."
        scores, targets = model(batch[0]).float(), batch[1]
        if self._now.question.kind == "classes":
            return F.cross_entropy(scores, targets)
        if self._now.question.kind == "labels":
            return F.binary_cross_entropy_with_logits(scores, targets)
        centre, spread = self._scale(scores)
        return F.mse_loss(scores, (targets - centre) / spread)

    def predict(self, model: nn.Module, batch: Any) -> torch.Tensor:
        "Probabilities, or numbers in the targets' own unit. [batch, classes or targets]"
        scores = model(batch[0]).float()
        if self._now.question.kind == "classes":
            return scores.softmax(dim=1)
        if self._now.question.kind == "labels":
            return scores.sigmoid()
        centre, spread = self._scale(scores)
        return centre + spread * scores

    def _scale(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(
            torch.as_tensor(values, dtype=torch.float32, device=like.device)
            for values in (self._now.centre, self._now.spread)
        )

    def metrics_all(self, predictions: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
        "accuracy, macro_f1 and, for two classes, auc; or rmse, mae and r2, the mean over the targets."
        if self._now.question.kind == "classes":
            chosen, found = predictions.argmax(dim=1), {}
            found["accuracy"] = float((chosen == targets).double().mean())
            pairs = [
                ((chosen == c) & (targets == c), (chosen == c).sum() + (targets == c).sum())
                for c in range(predictions.shape[1])
            ]
            found["macro_f1"] = float(np.mean([2 * float(both.sum() / either) for both, either in pairs if either]))
            if predictions.shape[1] == 2:
                found["auc"] = _auc(predictions[:, 1], targets)
            return found
        if self._now.question.kind == "labels":
            each = [_auc(predictions[:, i], targets[:, i]) for i in range(targets.shape[1])]
            return {
                "accuracy": float(((predictions > 0.5) == (targets > 0.5)).double().mean()),
                "auc": float(np.mean(each)),
            }
        error = (predictions - targets).double()
        around = (targets.double() - targets.double().mean(dim=0)).square().sum(dim=0)
        return {
            "rmse": float(error.square().mean(dim=0).sqrt().mean()),
            "mae": float(error.abs().mean()),
            "r2": float((1 - error.square().sum(dim=0) / around.clamp_min(1e-30)).mean()) if len(error) > 1 else 0.0,
        }

    def test_dataset(self, cfg: sk.Config) -> TensorDataset:
        "The rows of the test table, in its order."
        return TensorDataset(torch.from_numpy(self.known(cfg).x_test))

    def sample_submission(self, cfg: sk.Config) -> Path | None:
        "The sample submission in the folder of the data."
        return _sample_file(find_folder({**self.options, **cfg.task}["data"]))

    def submission(self, predictions: np.ndarray) -> Any:
        "The table that is handed in: the sample submission's columns, in its order."
        k, q = self._now, self._now.question
        if q.answer == "label" and q.kind == "classes":
            answers = {q.asked[0]: [q.classes[code] for code in predictions.argmax(axis=1)]}
        elif q.answer == "label":
            answers = {name: (predictions[:, i] > 0.5).astype(int) for i, name in enumerate(q.asked)}
        elif q.answer == "probability" and q.kind == "classes":
            answers = {q.asked[0]: predictions[:, 1]}
        else:
            answers = {name: predictions[:, i] for i, name in enumerate(q.asked)}
        table = k.ids.assign(**{name: values for name, values in answers.items()})
        return table.iloc[k.order].reset_index(drop=True)[q.columns]


def _auc(scores: torch.Tensor, targets: torch.Tensor) -> float:
    "How often a positive row has the higher score, ties counted half; 0.5 where there is only one kind."
    positive, negative = scores[targets > 0.5].double(), scores[targets <= 0.5].double().sort().values
    if not len(positive) or not len(negative):
        return 0.5
    below, up_to = torch.searchsorted(negative, positive), torch.searchsorted(negative, positive, right=True)
    return float((below + up_to).double().mean() / 2 / len(negative))


def read(task: Table, cfg: sk.Config, options: dict[str, Any]) -> Known:
    "Read the tables of a task and make arrays of them. RequestError, in a sentence, on whatever is wrong with them."
    folder = find_folder(options["data"])
    files = {"train": _file(folder, "train"), "test": _file(folder, "test"), "sample submission": _sample_file(folder)}
    if missing := [name for name, path in files.items() if path is None]:
        there = sorted(path.name for path in folder.iterdir())
        raise sk.RequestError(
            f"{folder.name} has no table {missing[0]!r} as CSV or Parquet. It holds {_few(there) or 'nothing'}. "
            "Name another folder: task.data=FOLDER."
        )
    train, test, sample = (read_table(path) for path in files.values())
    q = ask(train, test, sample, options)
    notes, where = list(q.notes), [files["train"].name, files["test"].name]
    train, y = _with_targets(train, q, notes, where[0])
    groups = _groups(train, q, options)
    folds = int_option(task, cfg, "folds", 2, len(train))
    fold = int_option(task, cfg, "fold", -1, folds - 1)
    held_out = folds_of(y if y.ndim == 1 else y[:, 0], groups, folds) == fold
    drop = options["drop"] if isinstance(options["drop"], (list, tuple)) else [options["drop"]]
    for name in drop:
        if name not in train.columns:
            raise sk.RequestError(f"task.drop names {name!r}, which is no column of {where[0]}.{_hint(name, train)}")
    left_out = {*q.ids, *q.targets, *drop, options["group"]}
    names = [name for name in train.columns if name in test.columns and name not in left_out]
    if only := [name for name in train.columns if name not in test.columns and name not in left_out]:
        notes.append(f"left out, because {where[1]} has no such column: {_few(only)}")
    if not names:
        raise sk.RequestError(
            f"{where[0]} and {where[1]} have no column in common to learn from. Look at the two files."
        )
    columns = look_at_columns(train, np.flatnonzero(~held_out), names, options, notes)
    ids, order = _ordered(test, sample, q, notes, where[1])
    numbers = y[~held_out] if y.ndim == 2 else np.zeros((1, 1))
    spread = numbers.std(axis=0)
    x, x_test = columns.encode(train, where[0], notes), columns.encode(test, where[1], notes)
    return Known(
        q,
        columns,
        x,
        y.astype(np.int64 if y.ndim == 1 else np.float32),
        held_out,
        x_test,
        ids,
        order,
        numbers.mean(axis=0),
        np.where(spread > 0, spread, 1.0),
        notes,
    )


def _with_targets(train: Any, q: Question, notes: list[str], where: str) -> tuple[Any, np.ndarray]:
    "The rows that say the answer, and the answers: codes [rows], or numbers [rows, targets]."
    given = train[q.targets].notna().all(axis=1)
    if not given.all():
        notes.append(f"{int((~given).sum())} rows of {where} are left out: they do not say the target")
    train = train[given].reset_index(drop=True)
    if len(train) < 2:
        raise sk.RequestError(
            f"{where} has {len(train)} rows that say the target {_few(q.targets)}. It needs two at least."
        )
    if q.kind == "classes":
        code = {value: place for place, value in enumerate(q.classes)}
        return train, np.array([code[_plain(value)] for value in train[q.targets[0]]])
    y = train[q.targets].to_numpy(np.float64)
    if wrong := int((~np.isfinite(y)).any(axis=1).sum()):
        raise sk.RequestError(f"The target {_few(q.targets)} is infinite in {wrong} of the rows of {where}. Mend them.")
    return train, y


def _groups(train: Any, q: Question, options: dict[str, Any]) -> np.ndarray | None:
    "What stays together in the split: the column that was named, or rows of one id; None where all ids differ."
    if (name := options["group"]) is not None:
        if name not in train.columns:
            raise sk.RequestError(f"task.group={name} is no column of the training table.{_hint(name, train)}")
        return train[name].to_numpy(object)
    ids = [name for name in q.ids if name in train.columns]
    if not ids or not train.duplicated(ids).any():
        return None
    return train[ids].astype(str).agg("\0".join, axis=1).to_numpy(object)


def _ordered(test: Any, sample: Any, q: Question, notes: list[str], where: str) -> tuple[Any, np.ndarray]:
    "The ids of the test table, and the test's row for each row of the submission."
    if any(name not in test.columns for name in q.ids):
        return sample[q.ids], np.arange(len(test))
    ids = test[q.ids]
    if (doubled := ids.duplicated()).any():
        raise sk.RequestError(
            f"{int(doubled.sum())} ids of {where} are there twice, such as {_few(ids[doubled].iloc[0].tolist())}. "
            "An answer needs ids that differ; mend the table, or name the column of the ids: task.id=COLUMN."
        )
    row = {key: place for place, key in enumerate(ids.itertuples(index=False, name=None))}
    wanted = [row.get(key) for key in sample[q.ids].itertuples(index=False, name=None)]
    if None not in wanted and len(set(wanted)) == len(row) == len(wanted):
        return ids, np.array(wanted)
    notes.append(f"the sample submission has other ids than {where}; the submission has those of {where}, in its order")
    return ids, np.arange(len(test))


if __name__ == "__main__":  # Kaggle runs a utility script once, when it is saved
    print(
        f"spectrakit {sk.__version__}: {Table.__doc__.splitlines()[0]}",
        *(f"  task.{name}={value}" for name, value in Table.options.items()),
        sep="\n",
    )
