"Whichever way a data set is read: the same samples in the same order, and no more work than the way has."

import importlib.util
import pickle
import sys

import numpy
import pytest
import torch
from safetensors.numpy import save_file
from torch.utils.data import Subset, TensorDataset

from spectrakit.config.compose import compose
from spectrakit.config.effective_batch import BatchPlan
from spectrakit.data.array_rows import ArrayDataset, columns_of, take_rows
from spectrakit.data.loaders import (
    Copies,
    LoadedBatches,
    MicroBatch,
    Placement,
    ResidentBatches,
    RowBatches,
    copied_ahead,
    eval_batches,
    train_batches,
)
from spectrakit.system.errors import RequestError

X, Y = torch.arange(92.0).reshape(23, 4), torch.arange(23)


class Rows:
    "The same samples, one by one."

    def __len__(self):
        return 23

    def __getitem__(self, index):
        return X[index], Y[index]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arrays")
    numpy.save(folder / "x.npy", X.numpy())
    numpy.save(folder / "y.npy", Y.numpy())
    return folder / "x.npy", folder / "y.npy"


@pytest.fixture(scope="module")
def other_files(tmp_path_factory):
    "Form → the same two arrays in one file, where what reads it is installed."
    folder = tmp_path_factory.mktemp("files")
    arrays = {"x": X.numpy(), "y": Y.numpy()}
    save_file(arrays, folder / "a.safetensors")
    if importlib.util.find_spec("h5py"):
        h5py = importlib.import_module("h5py")
        with h5py.File(folder / "a.h5", "w") as file:
            file.create_dataset("x", data=arrays["x"], chunks=(3, 4), compression="gzip")
            file["y"] = arrays["y"]
    if importlib.util.find_spec("pyarrow"):
        pa, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
        lists = pa.FixedSizeListArray.from_arrays(pa.array(arrays["x"].reshape(-1)), 4)
        parts = {f"x{number}": arrays["x"][:, number] for number in range(4)}
        table = pa.table({"x": lists, "y": arrays["y"], **parts, "name": ["?"] * 23, "gap": [None, *range(22)]})
        parquet.write_table(table, folder / "a.parquet", row_group_size=5)
    return {path.suffix: path for path in folder.iterdir()}


@pytest.fixture
def ways(files, other_files):
    "Name → (data set, settings, the class that reads it)."
    mapped = torch.from_file(str(files[0].parent / "raw"), shared=True, size=92).reshape(23, 4).copy_(X)
    backwards = list(range(23))[::-1]
    from_files = {form: ArrayDataset((path, "x"), (path, "y")) for form, path in other_files.items()}
    if ".parquet" in other_files:
        path = other_files[".parquet"]
        from_files["side by side"] = ArrayDataset((path, ["x0", "x1", "x2", "x3"]), (path, "y"))
    return {
        **{form: (dataset, "1e-9", RowBatches) for form, dataset in from_files.items()},
        "on the device": (TensorDataset(X, Y), "1", ResidentBatches),
        "in memory": (TensorDataset(X, Y), "1e-9", RowBatches),
        "a file's tensor": (TensorDataset(mapped, Y), "1e-9", RowBatches),
        "files": (ArrayDataset(*files), "1e-9", RowBatches),
        "files on the device": (ArrayDataset(*files), "1", ResidentBatches),
        "part of a part": (Subset(Subset(ArrayDataset(*files), backwards), backwards), "1e-9", RowBatches),
        "never as a whole": (TensorDataset(X, Y), "0", LoadedBatches),
        "files, never as a whole": (ArrayDataset(*files), "0", LoadedBatches),
        **{f"{form}, one by one": (dataset, "0", LoadedBatches) for form, dataset in from_files.items()},
        "one by one": (Rows(), "1", LoadedBatches),
    }


@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (0, 2), (1, 2)])
@pytest.mark.parametrize("drawn", [False, True])
def test_every_way_reads_the_same(ways, rank, world_size, drawn):
    wanted = None
    for name, (dataset, limit, kind) in ways.items():
        config = compose("dataloader.num_workers=0", "data.micro_batch_size=2", f"data.resident_gib={limit}", "seed=4")
        place, plan = Placement("cpu", rank, world_size), BatchPlan(23, 2, 2, world_size)
        sampled = (lambda epoch: torch.arange(23) * (epoch + 5) % 11) if drawn else None
        batches = train_batches(dataset, plan, config, place, sampled=sampled)
        checks = eval_batches(dataset, config, place)
        assert type(batches) is type(checks) is kind and batches.reason.startswith("samples: "), name
        parts = [batches.epoch(0), batches.epoch(1, 2), checks.epoch(0)]
        found = [[(list(b.data), *b[1:]) for b in part] for part in parts]
        wanted = wanted or found
        for ours, theirs in zip(found, wanted, strict=True):
            for (data, *numbers), (given, *others) in zip(ours, theirs, strict=True):
                assert numbers == others and all(map(torch.equal, data, given)), name


class CountedArray:
    "An array that can be indexed as HDF5's can, and counts how often it is."

    def __init__(self, rows):
        self.rows, self.shape, self.nbytes, self.reads = rows, rows.shape, rows.nbytes, 0

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, asked):
        self.reads += 1
        assert isinstance(asked, slice) or (numpy.diff(asked) > 0).all()
        return self.rows[asked]


@pytest.mark.parametrize("shuffle", ["true", "false"])
def test_a_batch_is_one_read_of_each_column_in_ascending_order(shuffle):
    column = CountedArray(X.numpy())
    words = ("data.micro_batch_size=5", "data.resident_gib=1e-9", f"data.shuffle={shuffle}", "dataloader.num_workers=0")
    batches = train_batches(ArrayDataset(column), BatchPlan(23, 5), compose(*words))
    assert len(list(batches.epoch(0))) == 5 == column.reads
    assert torch.equal(take_rows(column, torch.tensor([3, 1, 3])), X[[3, 1, 3]])


def test_a_subset_of_a_large_data_set_is_not_copied():
    whole = TensorDataset(X, Y)
    part = columns_of(Subset(whole, range(10)))
    assert part.columns[0] is X and part.gib() < columns_of(whole).gib() / 2


class Streams:
    "Stands in for torch.cuda, and writes down what is asked of it."

    def __init__(self):
        self.asked, self.now = [], "model"

    def Stream(self, device):
        return Stream("copies", self)

    def current_stream(self, device):
        return Stream(self.now, self)

    def stream(self, stream):
        return stream


class Stream:
    def __init__(self, name, cuda):
        self.name, self.cuda = name, cuda

    def __enter__(self):
        self.cuda.now = self.name

    def __exit__(self, *_):
        self.cuda.now = "model"

    def record_event(self):
        self.cuda.asked.append((self.name, "copied"))

    def wait_event(self, event):
        self.cuda.asked.append((self.name, "waits"))


class Leaf:
    "A tensor that writes down on which stream it is copied, and which one uses it."

    def __init__(self, number, cuda):
        self.number, self.cuda = number, cuda

    def to(self, device, non_blocking=False):
        assert non_blocking
        self.cuda.asked.append((self.cuda.now, f"copies {self.number}"))
        return self

    def record_stream(self, stream):
        self.cuda.asked.append((stream.name, f"uses {self.number}"))


def test_a_batch_is_copied_on_another_stream_while_the_one_before_is_worked_on():
    cuda = Streams()
    batches = copied_ahead((MicroBatch([Leaf(n, cuda)], n, 1, True) for n in range(3)), "cuda", cuda=cuda)
    for batch in batches:
        cuda.asked.append(("model", f"step {batch.samples}"))
    copy = {n: [("copies", f"copies {n}"), ("copies", "copied")] for n in range(3)}
    step = {n: [("model", "waits"), ("model", f"uses {n}"), ("model", f"step {n}")] for n in range(3)}
    assert cuda.asked == [*copy[0], *copy[1], *step[0], *copy[2], *step[1], *step[2]]
    assert not list(copied_ahead(iter(()), "cuda", cuda=cuda))


@pytest.mark.parametrize(("locked_s", "plain_s"), [(3, 2), (2, 3)])
def test_batches_go_through_page_locked_memory_where_the_first_ones_are_faster_so(locked_s, plain_s):
    now, ways, said = [0], [], []

    def through(data):
        now[0] += locked_s
        return f"locked {data}"

    def to_gpu(data, device):
        ways.append(data.startswith("locked"))
        now[0] += 0 if ways[-1] else plain_s
        return data.split()[-1], device

    copies = Copies(None, said.append, through, to_gpu, lambda: now[0])
    assert [copies.to(str(n), "cuda") for n in range(20)] == [(str(n), "cuda") for n in range(20)]
    assert ways == [True, False] * 8 + [locked_s < plain_s] * 4
    assert len(said) == 1 and f"pin_memory=auto: {'yes' if locked_s < plain_s else 'no'}, because" in said[0]


def test_without_page_locked_memory_batches_are_copied_as_they_lie():
    def through(data):
        raise RuntimeError("CUDA error: out of memory\nand more")

    said = []
    copies = Copies(True, said.append, through, lambda data, device: data)
    assert [copies.to(n, "cuda") for n in range(3)] == [0, 1, 2]
    assert said == ["batches do not go through page-locked memory: CUDA error: out of memory"]


def test_what_is_no_array_of_samples_is_refused(tmp_path):
    numpy.save(tmp_path / "one.npy", numpy.float32(3))
    numpy.savez(tmp_path / "several.npz", a=numpy.zeros(3))
    numpy.save(tmp_path / "objects.npy", numpy.array([{}, {}]), allow_pickle=True)
    (tmp_path / "text.npy").write_text("hello")
    (tmp_path / "torn.npy").write_bytes(b"PK\3\4" + bytes(99))  # half a .npz file
    names = ("one.npy", "several.npz", "objects.npy", "text.npy", "torn.npy", "none.npy")
    files = [str(tmp_path / name) for name in names]
    for wrong in (*files, "a\0b.npy", 3, None, torch.tensor(1.0)):
        with pytest.raises(RequestError, match="numpy.save|not an array of samples"):
            ArrayDataset(wrong)


def test_a_file_with_arrays_tells_what_it_lacks(tmp_path, other_files):
    cases = [("a.safetensors", "z", "holds 'x', 'y', and not 'z'"), ("a.safetensors", None, "holds 'x', 'y'. Name one")]
    if ".h5" in other_files:
        cases += [("a.h5", None, "holds 'x', 'y'. Name one")]
    if ".parquet" in other_files:
        cases += [("a.parquet", "name", "is string. Name"), ("a.parquet", "gap", "rows without a value. Fill")]
    folder = other_files[".safetensors"].parent
    for file, name, text in cases:
        with pytest.raises(RequestError, match=text):
            ArrayDataset((folder / file, name) if name else folder / file)
    for form in other_files:
        (spoiled := tmp_path / f"spoiled{form}").write_bytes(b"spoiled")
        with pytest.raises(RequestError, match="cannot be opened as .* Write it by"):
            ArrayDataset(spoiled)


@pytest.mark.parametrize(("file", "package"), [("a.h5", "h5py"), ("a.parquet", "pyarrow")])
def test_a_package_that_is_missing_is_named(monkeypatch, file, package):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"{package}.parquet", raising=False)
    with pytest.raises(RequestError, match=f"needs the package {package}, which is not installed. Install it"):
        ArrayDataset((file, "x"))


def test_files_are_sent_to_a_process_by_name(other_files):
    for path in other_files.values():
        dataset = ArrayDataset((path, "x"), (path, "y"))
        sent = pickle.dumps(dataset)
        assert len(sent) < 600 and torch.equal(pickle.loads(sent)[5][0], dataset[5][0])
