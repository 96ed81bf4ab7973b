"""A job: what it says, how a task gets to another process, its big arrays mapped, and the sentence where it cannot get
there.
"""

import errno
import json
import os
import queue
import shutil
import socket
import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from helpers import clean_environ
from spectrakit.config.compose import compose
from spectrakit.launch.job import (
    Job,
    check_task_name,
    full_task_name,
    load_task,
    name_of,
    read_job,
    read_job_file,
    update_extra,
    write_job,
)
from spectrakit.launch.job_kind import PREDICT, TRAIN
from spectrakit.launch.pickling.task_pickle import MAPPED_FROM_BYTES, TaskNotPicklable, read_task
from spectrakit.launch.request import new_request
from spectrakit.system.errors import RequestError
from spectrakit.task.task import Task
from tasks import Line

BIG = 4096  # bytes: what these tests call big


class Holds:
    "A task that holds what it is given."

    def __init__(self, **attributes):
        vars(self).update(attributes)


@pytest.fixture
def job(tmp_path, monkeypatch) -> Job:
    "A job in an empty folder; temporary files go there too. What reading one changes is put back."
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return Job(TRAIN, tmp_path / "runs" / "x", new_request(compose("seed=3", "data.batch_size=4")))


def there_and_back(job, task):
    "(`task` as it comes back, the folder of its job)."
    folder = write_job(job, task, mapped_from_bytes=BIG)
    return read_job(folder)[1], folder


def arrays_in(folder) -> list[str]:
    return sorted(path.name for path in folder.glob("array-*"))


def is_mapped(array) -> bool:
    "Whether the memory of a numpy array is a file's."
    while isinstance(array.base, np.ndarray):
        array = array.base
    return isinstance(array, np.memmap)


def mapped_address(tensor, folder) -> bool:
    "Whether the memory of a tensor is that of a file in `folder`, as Linux tells it."
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_, name = line.split(maxsplit=5)
        begin, end = (int(number, 16) for number in span.split("-"))
        if begin <= tensor.untyped_storage().data_ptr() < end:
            return name.startswith(str(folder)) and "rw-p" in line
    return False


def elsewhere(folder, code, cwd="/", **env) -> subprocess.CompletedProcess:
    "Run `code` in a fresh process, where `job, task = read_job(folder)` has been done."
    start = "import sys; from spectrakit.launch.job import *\njob, task = read_job(sys.argv[1])\n"
    return subprocess.run(
        [sys.executable, "-c", start + code, str(folder)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        env={**clean_environ(), **env},
    )


# what a job says


def test_a_job_comes_back_as_it_was_written(job, tmp_path):
    extra = {"restart": 2, "why": None}
    wanted = Job(PREDICT, Path("runs/y"), job.request, "table.csv", Path("runs/x"), extra)
    folder = write_job(wanted, "digits")
    found, task = read_job(folder)
    assert (found.kind, found.out, found.extra, found.request) == (PREDICT, "table.csv", wanted.extra, job.request)
    assert (found.run_dir, found.weights_from) == (tmp_path / "runs" / "y", tmp_path / "runs" / "x")
    assert name_of(task) == "digits" and folder.parent == tmp_path
    assert folder.stat().st_mode & 0o777 == 0o700
    assert set(os.listdir(folder)) - {"modules.pkl"} == {"job.json"}  # that of the modules of these tests
    head = read_job_file(folder)
    assert head["parent"] == os.getpid() and head["cwd"] == str(tmp_path) and head["task"] == "digits"
    assert Job(TRAIN, tmp_path, job.request).extra == {}


def test_extra_is_changed_and_nothing_else_is_touched(job):
    folder = write_job(job, Holds(x=np.arange(9999.0)), mapped_from_bytes=BIG)
    before = {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.iterdir()}
    head = update_extra(folder, restart=1, devices=[0])
    assert update_extra(folder, restart=2)["extra"] == {"restart": 2, "devices": [0]} and head["extra"]["restart"] == 1
    after = {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.iterdir()}
    assert set(after) == set(before) and {name for name in after if after[name] != before[name]} == {
        "job.json"
    }  # replaced
    again, task = read_job(folder)
    assert again.extra == {"restart": 2, "devices": [0]} and again.config == job.config and task.x[-1] == 9998
    with pytest.raises(TypeError):
        update_extra(folder, restart=object())
    assert read_job_file(folder)["extra"]["restart"] == 2 and set(os.listdir(folder)) == set(before)


def test_a_task_that_a_fork_brings_along_is_not_written(job):
    folder, task = write_job(job, None), Locked()
    assert (
        os.listdir(folder) == ["job.json"]
        and read_job_file(folder)["task"] is read_job_file(folder)["task_class"] is None
    )
    again, found = read_job(folder, task)
    assert found is task and again.config == job.config
    with pytest.raises(RequestError, match="has no task: only a forked process has it"):
        read_job(folder)


def test_the_folder_goes_where_it_is_wanted(job, tmp_path, monkeypatch):
    (tmp_path / "big disk").mkdir()
    assert write_job(job, "coffee", folder_parent="big disk").parent == tmp_path / "big disk"
    monkeypatch.setenv("TMPDIR", str(tmp_path / "big disk"))  # as a cell sets it, long after tempfile looked
    assert write_job(job, Holds()).parent == tmp_path / "big disk"
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))  # such as the one of a cluster's job that has ended
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert write_job(job, Holds()).parent == tmp_path
    with pytest.raises(RequestError, match="No job can be written to none: No such file.*Set TMPDIR"):
        write_job(job, Holds(), "none")


def test_reading_the_head_touches_no_task(job, tmp_path):
    folder = write_job(job, Holds(x=1))
    (folder / "task.pkl").write_bytes(b"no pickle")
    assert read_job_file(folder)["kind"] == "train"
    with pytest.raises(RequestError, match="The task Holds cannot be rebuilt.*UnpicklingError"):
        read_job(folder)
    (folder / "task.pkl").unlink()
    with pytest.raises(RequestError, match="The task Holds cannot be rebuilt.*FileNotFoundError"):
        read_job(folder)
    for read in (read_job_file, read_job):
        with pytest.raises(RequestError, match="There is no job in .*nowhere"):
            read(tmp_path / "nowhere")


# who may have written it


class Trap:
    "Leaves a trace where it is unpickled."

    def __reduce__(self):
        return (Path.touch, (Path("trace"),))


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701, 0o722])
def test_a_folder_that_others_can_get_at_is_not_read(job, tmp_path, mode):
    folder = write_job(job, Trap())
    folder.chmod(mode)
    for read in (read_job, lambda folder: read_task(folder, "Trap")):
        with pytest.raises(RequestError, match="Other users can access.*TMPDIR"):
            read(folder)
    assert not (tmp_path / "trace").exists()
    folder.chmod(0o700)
    read_job(folder)
    assert (tmp_path / "trace").exists()  # the trap is one


def test_a_folder_of_somebody_else_or_behind_a_link_is_not_read(job, tmp_path, monkeypatch):
    folder = write_job(job, Trap())
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(RequestError, match="is not a folder"):
        read_job(tmp_path / "link")
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(RequestError, match="Other users can access"):
        read_job(folder)
    with pytest.raises(RequestError, match="Other users can access"):
        write_job(job, Trap())  # it would be read in vain
    assert not (tmp_path / "trace").exists() and [path for path in tmp_path.glob("spectrakit-job-*")] == [folder]


# by value

CELL = """
import numpy
SHARED = numpy.arange(2000.0)

class Cell:
    options = {"fold": 0}
    def __init__(self): self.scale = 3
    def datasets(self, cfg): return SHARED * self.scale, None
    def __repr__(self): return f"Cell({SHARED.sum() * self.scale:.0f})"

task = Cell()
"""


def test_a_class_from_a_cell_is_carried_with_the_globals_it_uses(job):
    "To a process that knows nothing of the cell; the array of another cell is written once and mapped."
    space = {"__name__": "__main__"}
    exec(CELL, space)
    folder = write_job(job, space["task"], mapped_from_bytes=BIG)
    assert arrays_in(folder) == ["array-0.npy"] and (folder / "task.pkl").stat().st_size < BIG
    done = elsewhere(
        folder,
        "print(task, job.config.seed, type(task).__module__, type(task.datasets(None)[0]).__name__)\n"
        "print(type(type(task).datasets.__globals__['SHARED'].base).__name__, 'torch' in sys.modules)",
    )
    assert (done.returncode, done.stdout) == (0, "Cell(5997000) 3 __main__ ndarray\nmemmap False\n"), done.stderr


def test_torch_is_imported_only_where_the_task_needs_it():
    code = (
        "import sys, spectrakit.launch.job\nfrom spectrakit.launch.pickling.task_pickle import *\nassert not "
        "{'torch', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=clean_environ(), timeout=120
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.slow
def test_several_processes_share_the_pages(job, tmp_path):
    "What one writes stays its own; both have the file mapped, privately."
    folder = write_job(job, Holds(x=torch.arange(2**19), y=np.zeros(2**19)), mapped_from_bytes=MAPPED_FROM_BYTES // 64)
    code = (
        "from pathlib import Path\ntask.x[:] += 1; task.y[0] = 7\n"
        "print(int(task.x[0]), sorted({line.split()[-1].rsplit('/')[-1] for line in "
        "Path('/proc/self/maps').read_text().splitlines()"
        " if 'array-' in line and 'rw-p' in line}))"
    )
    for _ in range(2):
        done = elsewhere(folder, code)
        assert (done.returncode, done.stdout) == (0, "1 ['array-0.npy', 'array-1.npy']\n"), done.stderr
    task = read_job(folder)[1]
    assert task.x[0] == 0 and task.y[0] == 0


# arrays


def layouts(a):
    "Arrays of many layouts, made of `a` [40, 30, 8]."
    frozen = a.copy()
    frozen.flags.writeable = False
    return {
        "plain": a,
        "fortran": np.asfortranarray(a),
        "transposed": a.transpose(2, 0, 1),
        "reversed": a[::-1],
        "rows": a[3:],
        "reversed columns": a[:, ::-1],
        "all reversed": a[::-1, ::-1, ::-1],
        "gaps": a[:, ::2],
        "reversed gaps": a[::-2, :, 1:],
        "a slice of the fortran one": np.asfortranarray(a)[1:],
        "repeated": np.broadcast_to(a[0], (50, 30, 8)),
        "frozen": frozen,
        "windows": np.lib.stride_tricks.sliding_window_view(a, 5, axis=0),
        "big-endian": a.astype(a.dtype.newbyteorder(">")),
    }


@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "c16", "?"])
def test_arrays_of_any_layout_come_back_equal_and_mapped(job, dtype):
    random = np.random.default_rng(0).integers(0, 100, (40, 30, 8)).astype(dtype)
    task, folder = there_and_back(job, Holds(**layouts(random)))
    for name, wanted in layouts(random).items():
        found = vars(task)[name]
        assert type(found) is np.ndarray and found.dtype == wanted.dtype and found.shape == wanted.shape, name
        assert np.array_equal(found, wanted) and is_mapped(found) and found.flags.aligned, name
        assert found.flags.writeable == (name != "frozen" and wanted.flags.writeable), name
        if "gaps" not in name and "slice" not in name:
            assert found.strides == wanted.strides, name
    assert (folder / "task.pkl").stat().st_size < 2 * BIG
    assert (folder / "array-0.npy").stat().st_size == random.nbytes + 128  # and it is an array that numpy reads
    assert np.load(folder / "array-0.npy").nbytes == random.nbytes


@pytest.mark.parametrize(
    "array",
    [
        np.arange(BIG).astype("M8[s]"),
        np.array(["ab", "ünï"] * BIG),
        np.array([b"ab"] * BIG),
        np.zeros(BIG, [("x", "f4"), ("y", "i2", 3)]),
        np.arange(BIG, dtype=np.float16),
        np.longdouble(2) * np.arange(BIG),
    ],
    ids=lambda array: array.dtype.str,
)
def test_other_plain_dtypes_are_mapped_too(job, array):
    task, folder = there_and_back(job, Holds(x=array))
    assert task.x.dtype == array.dtype and (task.x == array).all() and is_mapped(task.x) and arrays_in(folder)


def test_objects_and_small_arrays_stay_in_the_pickle(job):
    objects = np.array([{"a": 1}] * BIG, dtype=object)
    masked = np.ma.masked_array(np.arange(BIG), np.arange(BIG) % 2)
    task, folder = there_and_back(
        job, Holds(objects=objects, small=np.zeros(BIG // 8 - 1), tensor=torch.zeros(8), nothing=np.zeros(0))
    )
    assert (
        arrays_in(folder) == []
        and task.objects[5] == {"a": 1}
        and len(task.small) == BIG // 8 - 1
        and task.nothing.size == 0
    )
    task, _ = there_and_back(job, Holds(masked=masked))
    assert isinstance(task.masked, np.ma.MaskedArray) and task.masked.sum() == masked.sum()


def test_exactly_the_limit_is_mapped(job):
    folder = write_job(
        job,
        Holds(x=np.zeros(BIG, "i1"), y=np.zeros(BIG - 1, "i1"), z=torch.zeros(BIG, dtype=torch.int8)),
        mapped_from_bytes=BIG,
    )
    assert arrays_in(folder) == ["array-0.npy", "array-1.npy"] and MAPPED_FROM_BYTES == 67108864


def test_one_array_named_twice_is_one_file_and_one_object(job):
    x, t = np.arange(9999.0), torch.arange(9999)

    def closure():
        return x, t

    task, folder = there_and_back(
        job, Holds(x=x, listed=[x, {"t": t}], t=t, closure=closure, reverse=x[::-1], typed=x.view("i8"))
    )
    assert task.x is task.listed[0] is task.closure()[0] and task.t is task.listed[1]["t"] is task.closure()[1]
    assert arrays_in(folder) == ["array-0.npy", "array-1.npy"]
    task.x[0] = 5  # views of one memory stay views of one memory
    assert task.reverse[-1] == 5 and task.typed[0] == np.float64(5).view("i8") and x[0] == 0


def test_a_view_does_not_carry_what_it_does_not_show(job):
    whole = np.arange(100_000.0)
    _, folder = there_and_back(job, Holds(view=whole[:1000], gaps=whole[::100]))
    assert [(folder / name).stat().st_size for name in arrays_in(folder)] == [8128, 8128]


def test_a_gappy_array_larger_than_a_piece_is_written_whole(job):
    x = np.arange(2 * 2**22, dtype=np.float32).reshape(2048, -1)[:, :3001]  # 23 MiB, in pieces of 16
    task, _ = there_and_back(job, Holds(x=x))
    assert np.array_equal(task.x, x) and is_mapped(task.x)


def test_arrays_anywhere_in_the_task(job):
    big = np.arange(9999.0)
    pair = namedtuple("pair", "x y")

    def factory(scale=big):
        return lambda: big * 2 + scale

    task, folder = there_and_back(
        job,
        Holds(
            deep=[({"a": [big.copy()]},)],
            pair=pair(big.copy(), 1),
            made=factory(),
            data=TensorDataset(torch.arange(9999), torch.ones(9999)),
            net=nn.Linear(100, 50),
        ),
    )
    assert is_mapped(task.deep[0][0]["a"][0]) and is_mapped(task.pair.x) and (task.made() == big * 3).all()
    assert mapped_address(task.data.tensors[0], folder) and mapped_address(task.net.weight, folder)
    assert len(arrays_in(folder)) == 6 and task.net(torch.ones(1, 100)).shape == (1, 50)
    plain, _ = there_and_back(job, Task.of(nn.Linear(100, 50), TensorDataset(torch.ones(99, 100)), None, nn.MSELoss()))
    assert plain.model(None).weight.shape == (50, 100) and plain.datasets(None)[0].tensors[0].sum() == 9900


def test_a_data_frame_is_mapped_by_its_columns(job):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": np.arange(9999.0), "y": np.arange(9999), "name": ["a"] * 9999})
    task, folder = there_and_back(job, Holds(frame=frame))
    pandas.testing.assert_frame_equal(task.frame, frame)
    assert len(arrays_in(folder)) >= 2


def test_a_file_that_is_mapped_already_is_mapped_again_and_not_copied(job, tmp_path):
    np.save(tmp_path / "raw.npy", np.arange(20_000.0).reshape(200, 100))
    raw = np.load("raw.npy", mmap_mode="r")
    views = {"raw": raw, "rows": raw[5:], "turned": raw.T[::-1], "gaps": raw[:, 3:9], "plain": np.asarray(raw)}
    task, folder = there_and_back(job, Holds(**views))
    assert arrays_in(folder) == [] and (folder / "task.pkl").stat().st_size < BIG
    for name, wanted in views.items():
        found = vars(task)[name]
        assert np.array_equal(found, wanted) and is_mapped(found) and not found.flags.writeable, name
    np.save(tmp_path / "raw.npy", np.zeros((200, 100)))
    with pytest.raises(RequestError, match="raw.npy, which has changed since"):
        read_job(folder)
    (tmp_path / "raw.npy").unlink()
    with pytest.raises(RequestError, match="raw.npy, which cannot be read: No such file"):
        read_job(folder)


def test_a_mapped_file_that_was_written_to_or_is_gone_is_copied(job, tmp_path):
    np.save(tmp_path / "raw.npy", np.arange(2000.0))
    private, shared, gone = (np.load("raw.npy", mmap_mode=mode) for mode in ("c", "r+", "r"))
    private[0] = -1
    os.unlink("raw.npy")
    task, folder = there_and_back(job, Holds(private=private, shared=shared, gone=gone))
    assert (task.private[0], task.shared[0], task.gone[1999]) == (-1, 0, 1999) and len(arrays_in(folder)) == 3


def test_a_job_that_names_a_file_outside_its_folder_is_refused(job, tmp_path):
    folder = write_job(job, Holds(x=np.arange(9999.0)), mapped_from_bytes=BIG)
    np.save(tmp_path / "aa-7.npy", np.zeros(99_999, "u1"))
    content = (folder / "task.pkl").read_bytes()
    assert content.count(b"array-0.npy") == 1
    for name in (b"../aa-7.npy", b"/a/aa-7.npy", b"array-9.npy"):  # of the same length, so that it stays a pickle
        (folder / "task.pkl").write_bytes(content.replace(b"array-0.npy", name))
        with pytest.raises(RequestError, match="The job has no array"):
            read_job(folder)
    (folder / "task.pkl").write_bytes(content)
    shutil.move(folder / "array-0.npy", tmp_path / "moved.npy")
    (folder / "array-0.npy").symlink_to(tmp_path / "moved.npy")
    with pytest.raises(RequestError, match="The job has no array 'array-0.npy'"):
        read_job(folder)


# tensors


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.bool,
        torch.uint8,
        torch.int64,
        torch.complex64,
        torch.float8_e4m3fn,
        torch.uint16,
    ],
    ids=str,
)
def test_tensors_of_any_dtype_are_mapped(job, dtype):
    wanted = (torch.arange(9999) % 3).to(dtype)
    task, folder = there_and_back(job, Holds(x=wanted))
    assert task.x.dtype == dtype and torch.equal(task.x.view(torch.uint8), wanted.view(torch.uint8))
    assert (
        arrays_in(folder) == ["array-0.npy"]
        and mapped_address(task.x, folder)
        and (folder / "task.pkl").stat().st_size < BIG
    )
    before = (folder / "array-0.npy").read_bytes()
    task.x.zero_()
    assert (folder / "array-0.npy").read_bytes() == before


@pytest.mark.parametrize("dtype", [torch.uint16, torch.float8_e5m2, torch.bfloat16], ids=str)
def test_small_tensors_of_new_dtypes_are_carried_too(job, dtype):
    x = torch.arange(5).to(dtype)
    task, folder = there_and_back(job, Holds(x=x, view=x[1:], empty=torch.zeros(0, dtype=dtype)))
    assert (
        torch.equal(task.x.view(torch.uint8), x.view(torch.uint8))
        and arrays_in(folder) == []
        and task.empty.dtype == dtype
    )
    task.view[0] = 4
    assert float(task.x[1]) == 4 and float(x[1]) == 1


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")  # torch 2.11 says it of each
def test_tensors_keep_their_layout_their_memory_and_their_gradients(job):
    images = torch.randn(4, 3, 32, 32).to(memory_format=torch.channels_last)
    weight = nn.Parameter(torch.randn(50, 100))
    task, folder = there_and_back(
        job,
        Holds(
            images=images,
            view=images[1:],
            turned=images.permute(3, 0, 1, 2),
            weight=weight,
            tied=weight,
            wide=torch.randn(2, 4000).expand(5, 2, 4000),
            leaf=torch.randn(5000).requires_grad_(),
            sparse=torch.eye(3000).to_sparse(),
            bits=torch.randn(3000, dtype=torch.cfloat).conj(),
        ),
    )
    assert task.images.is_contiguous(memory_format=torch.channels_last) and torch.equal(task.images, images)
    assert torch.equal(task.turned, images.permute(3, 0, 1, 2)) and task.wide.stride() == (0, 4000, 1)
    assert (
        task.weight is task.tied
        and isinstance(task.weight, nn.Parameter)
        and task.weight.requires_grad
        and task.leaf.requires_grad
    )
    assert task.sparse.to_dense().trace() == 3000 and task.bits.is_conj()
    task.view[0] = 7
    assert (task.images[1] == 7).all() and not (images[1] == 7).any()
    assert len(arrays_in(folder)) == 7  # images, weight, wide, leaf, the two of sparse, bits


def test_tensors_without_memory(job):
    task, _ = there_and_back(job, Holds(x=torch.ones(9999, device="meta")))
    assert task.x.is_meta and task.x.shape == (9999,)
    for storage in (torch.ones(9999, device="meta").untyped_storage(), torch.ones(3, device="meta").untyped_storage()):
        with pytest.raises(TaskNotPicklable, match="Holds.s is an object of the type .*UntypedStorage"):
            write_job(job, Holds(s=storage), mapped_from_bytes=BIG)


class OnDevice(torch.Tensor):
    "A tensor that says it lies on the second GPU, which a machine without one cannot make."

    device = property(lambda self: torch.device("cuda:1"))


def test_a_tensor_on_a_gpu_is_refused(job, tmp_path):
    task = Holds(data={"x": torch.ones(3).as_subclass(OnDevice)})
    with pytest.raises(
        TaskNotPicklable, match=r"Holds\.data\['x'\] is a tensor on cuda:1\. Keep it on the CPU"
    ) as caught:
        write_job(job, task)
    assert caught.value.may_fork is False and not list(tmp_path.glob("spectrakit-job-*"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_tensor_that_is_on_a_gpu_is_refused(job):
    with pytest.raises(TaskNotPicklable, match="Holds.x is a tensor on cuda:0"):
        write_job(job, Holds(x=torch.ones(3, device="cuda")))


@pytest.mark.filterwarnings("ignore:Sparse")  # CSR is in beta, and invariants are not checked
def test_sparse_tensors_leave_nothing_for_the_next_load(job):
    held = Holds(coo=torch.eye(9).to_sparse(), csr=torch.eye(9).to_sparse_csr())
    task, _ = there_and_back(job, held)
    assert task.csr.to_dense().trace() == 9
    assert torch._utils._sparse_tensors_to_validate == []  # torch 2.14 warns of them at the next weights_only load


# modules


WITH_MODULES = """
import torch, six, transformers
import lazy_settings
class Cell:
    classes, ops, backends = ["cat", "dog"], ["flip"], "plain"
    def seeded(self):
        torch.backends.cudnn.deterministic = torch.backends.cudnn.deterministic
        return torch.backends.cudnn.enabled, torch.ops.aten, torch.utils.deterministic
    def names(self): return len(self.classes), len(self.ops), self.backends, torch.classes
    def others(self): return six.moves.range, transformers.models, lazy_settings.answer
"""


def test_modules_of_any_type_are_found_by_name(job, monkeypatch):
    "torch.backends.cudnn and torch.ops are modules of types of their own; a library may put any object there."
    lazy = type("Lazy", (), {"answer": 42, "__reduce__": None})()
    monkeypatch.setitem(sys.modules, "lazy_settings", lazy)
    space = {"__name__": "__main__"}
    exec(WITH_MODULES, space)
    task, _ = there_and_back(job, space["Cell"]())
    assert task.seeded() == (torch.backends.cudnn.enabled, torch.ops.aten, torch.utils.deterministic)
    assert task.names() == (2, 1, "plain", torch.classes)
    assert task.others() == (range, sys.modules["transformers"].models, 42)
    for module in (torch.backends.cudnn, torch.ops, torch.classes, torch.ops.aten, lazy, os.path):
        assert there_and_back(job, Holds(held=[module]))[0].held[0] is module


# room


def test_arrays_that_do_not_fit_are_refused_before_they_are_written(job, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2**40, 2**40, 3 * 2**29))
    huge = np.broadcast_to(np.zeros(1), 2**30)  # 8 GiB that take 8 bytes
    write_job(job, Holds(x=huge))
    monkeypatch.setattr(
        "spectrakit.launch.pickling.task_pickle._extent",
        lambda array: (array.ctypes.data, 2**33 if array.size > 9 else 8),
    )
    with pytest.raises(
        RequestError, match=r"Holds need 8\.0 GiB in .*, which has 1\.5 GiB free.*TMPDIR.*datasets\(cfg\)"
    ) as caught:
        write_job(job, Holds(x=huge))
    assert not isinstance(caught.value, TaskNotPicklable) and len(list(tmp_path.glob("spectrakit-job-*"))) == 1
    write_job(job, Holds(x=np.zeros(3)))


def test_a_disk_that_fills_up_on_the_way_is_a_sentence(job, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array_header_1_0", full)
    with pytest.raises(RequestError, match="need more space than .* GiB are free.*TMPDIR"):
        write_job(job, Holds(x=np.zeros(9999)), mapped_from_bytes=BIG)
    monkeypatch.undo()
    monkeypatch.setattr("spectrakit.launch.pickling.module_state.pickle.dumps", full)
    with pytest.raises(RequestError, match="modules need more space than .* GiB are free.*TMPDIR"):
        write_job(job, Holds(x=np.zeros(9)), tmp_path)
    assert not list(tmp_path.glob("spectrakit-job-*"))


# what cannot be pickled


class Locked(Line):
    "A task with a lock."

    def __init__(self):
        self.lock = threading.Lock()


def cannot_be_pickled(tmp_path) -> dict:
    "Tasks that cannot be pickled, by the words that say why."
    lock = threading.RLock()
    net = nn.Linear(2, 2)
    net.hook = (n for n in "abc")

    class InClass:
        pool = {"first": [0, lock]}

    class InHelper:
        def __init__(self):
            self.helper = InClass()

    class UsesLock:
        def loss(self, model, batch):
            def inner():
                with lock:
                    return 0

            return inner()

    class Default:
        @staticmethod
        def loss(model, batch, guard=lock):
            return 0

    class Property:
        @property
        def loss(self):
            return lock

    return {
        "Locked.lock is a lock": Locked(),
        "Holds.file is an open file": Holds(file=open(os.devnull, "rb")),
        "Holds.out is an open file": Holds(x=1, out=open(tmp_path / "out.txt", "w")),
        "Holds.batches[1] is a generator": Holds(batches=[1, (n for n in "abc")]),
        "Holds.net.hook is a generator": Holds(net=net),
        "Holds.link is a socket": Holds(link=socket.socket()),
        "Holds.todo is an object of the type queue.Queue": Holds(todo=queue.Queue()),
        "Holds.files['a'] is an open file": Holds(files={"a": open(os.devnull, "wb")}),
        "InHelper.helper.pool['first'][1] is a lock": InHelper(),
        "lock, which UsesLock.loss uses, is a lock": UsesLock(),
        "A default of Default.loss is a lock": Default(),
        "lock, which Property.loss uses, is a lock": Property(),
    }


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # some of these objects are files, left open
def test_what_cannot_be_pickled_is_named(job, tmp_path):
    for words, task in cannot_be_pickled(tmp_path).items():
        with pytest.raises(TaskNotPicklable) as caught:
            write_job(job, task)
        said = str(caught.value)
        assert said == (
            f"The task {type(task).__name__} cannot be pickled for the training process: {words}. "
            "Make it inside the methods that use it, or use launch.mode=inline."
        ), said
        assert isinstance(caught.value, RequestError) and caught.value.may_fork
        for thing in vars(task).values():
            if hasattr(thing, "close"):
                thing.close()
    assert not list(tmp_path.glob("spectrakit-job-*"))


def test_a_global_lock_of_another_cell_is_named(job):
    space = {"__name__": "__main__", "GUARD": threading.Lock()}
    exec("class Cell:\n    def loss(self, model, batch):\n        with GUARD: return 0\ntask = Cell()", space)
    with pytest.raises(TaskNotPicklable, match=r": GUARD, which Cell\.loss uses, is a lock\."):
        write_job(job, space["task"])


def test_what_has_no_part_to_blame_says_what_was_raised(job):
    class Stubborn:
        def __reduce__(self):
            raise ValueError("not\nme")

    loop = [threading.Lock()]
    loop.append(loop)
    with pytest.raises(
        TaskNotPicklable, match="Stubborn cannot be pickled for the training process: ValueError: not me. Make"
    ):
        write_job(job, Stubborn())
    with pytest.raises(TaskNotPicklable, match=r"Holds.loop\[0\] is a lock"):
        write_job(job, Holds(loop=loop))
    with pytest.raises(TaskNotPicklable, match="recursion"):
        deep = []
        for _ in range(20_000):
            deep = [deep]
        write_job(job, Holds(deep=deep))


def test_an_interrupt_leaves_no_folder(job, tmp_path):
    class Stopped:
        def __reduce__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_job(job, Stopped())
    assert not list(tmp_path.glob("spectrakit-job-*"))


# another process


@pytest.mark.slow
def test_the_reader_works_where_the_writer_worked(job, tmp_path, monkeypatch):
    "A module beside the notebook is found through '' on sys.path, and relative files are."
    (tmp_path / "beside.py").write_text("class Mine:\n    def word(self): return open('word.txt').read()\n")
    (tmp_path / "word.txt").write_text("found")
    monkeypatch.setattr(sys, "path", ["", Path("ignored"), *sys.path])
    import beside

    monkeypatch.delitem(sys.modules, "beside")
    done = elsewhere(write_job(job, beside.Mine()), "print(task.word(), '' in sys.path)")
    assert (done.returncode, done.stdout) == (0, "found True\n"), done.stderr
    done = elsewhere(write_job(job, "beside:Mine"), "print(task.word())")
    assert (done.returncode, done.stdout) == (0, "found\n"), done.stderr
    done = elsewhere(write_job(job, "beside.py:Mine"), "print(task.word())")
    assert (done.returncode, done.stdout) == (0, "found\n"), done.stderr


def test_a_module_that_is_missing_there_is_a_sentence(job, tmp_path, monkeypatch):
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "only_here.py").write_text("class Mine: pass\n")
    monkeypatch.syspath_prepend(tmp_path / "modules")
    import only_here

    task = only_here.Mine()
    sys.path.remove(str(tmp_path / "modules"))
    (tmp_path / "modules" / "only_here.py").unlink()  # one that is still there is found by its file
    code = (
        "from spectrakit.system.errors import RequestError; from spectrakit.launch.job import read_job\n"
        f"try: read_job({str(write_job(job, task))!r})\nexcept RequestError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=clean_environ(), timeout=120
    )
    assert done.stdout == (
        "The task Mine needs the module 'only_here', which the training process cannot import. "
        "Install it, or put its folder on sys.path before you start the training.\n"
    ), done.stderr
    assert "Traceback" not in done.stderr
    monkeypatch.delitem(sys.modules, "only_here")


def test_an_error_while_the_task_is_rebuilt_is_a_sentence_and_its_traceback_is_logged(job, capsys):
    class Breaks:
        def __init__(self):
            self.x = 1

        def __setstate__(self, state):
            raise KeyError("two\nlines")

    folder = write_job(job, Breaks())
    with pytest.raises(
        RequestError, match=r"The task Breaks cannot be rebuilt in the training process: KeyError: .*__setstate__"
    ) as caught:
        read_job(folder)
    assert "\n" not in str(caught.value) and "in __setstate__" in capsys.readouterr().err


def test_a_writer_whose_folder_is_gone(job, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir("gone")
    folder = write_job(job, "digits")
    os.rmdir(tmp_path / "gone")
    late = write_job(job, "digits")  # where the folder is gone already there is nothing to go to
    assert read_job_file(late)["cwd"] is None
    monkeypatch.chdir(tmp_path)
    assert name_of(read_job(late)[1]) == "digits"
    with pytest.raises(RequestError, match="The folder .*gone, in which the training was started, is gone"):
        read_job(folder)


# names


def test_the_name_of_a_file_is_kept_with_its_whole_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert (
        full_task_name("my.py:Mine") == f"{tmp_path}/my.py:Mine"
        and full_task_name("a/../my.py:Mine") == f"{tmp_path}/my.py:Mine"
    )
    assert full_task_name(f"{tmp_path}/a b.py:Mine") == f"{tmp_path}/a b.py:Mine"
    for name in ("coffee", "my.module:Mine", "__main__:Mine", "tasks:Line", "py:py", ""):
        assert full_task_name(name) == name
    for name in ("my.py:Mine", "coffee"):
        assert full_task_name(full_task_name(name)) == full_task_name(name)
    (tmp_path / "it's").mkdir()
    (tmp_path / "it's" / "my.py").write_text("class Mine: x = 5\n")
    name = full_task_name("it's/my.py:Mine")
    monkeypatch.chdir("/")
    check_task_name(name)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert load_task(name).x == 5 and sys.path.count(f"{tmp_path}/it's") == 1 and load_task(name).x == 5
    assert sys.path.count(f"{tmp_path}/it's") == 1
    monkeypatch.delitem(sys.modules, "my")


def test_a_file_without_its_class_is_told_with_the_classes_that_it_holds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("class Net: ...\nclass Mine(Base):\n    def datasets(self, cfg): ...\n1 / 0\n")
    with pytest.raises(RequestError, match=r"'mine\.py' is a file.*Add its name: mine\.py:Mine\.$"):
        check_task_name("mine.py")
    Path("broken.py").write_bytes(b"\xff class")
    with pytest.raises(RequestError, match=r"Add its name: broken\.py:Name\.$"):
        check_task_name("broken.py")
    with pytest.raises(RequestError, match=r"There is no task 'missing\.py'"):
        check_task_name("missing.py")


@pytest.mark.parametrize(
    "text, words",
    [
        ("1/0", "cannot be loaded: ZeroDivisionError"),
        ("raise ValueError('two\\nlines')", "cannot be loaded: ValueError: two lines."),
        ("raise SystemExit(3)", "cannot be loaded: SystemExit: 3"),
        ("import no_such_thing", "needs the module 'no_such_thing'"),
        ("def (", "cannot be loaded: SyntaxError"),
        ("class Mein: pass", "Did you mean 'Mein'?"),
        ("x = 1", "It has no public class."),
        ("class A: pass\nclass B: pass", "It has the classes A, B."),
        ("class Mine:\n    def __init__(self, x): pass", "cannot be loaded: TypeError"),
    ],
)
def test_a_task_file_that_does_not_load_is_one_sentence(tmp_path, monkeypatch, text, words):
    (tmp_path / "a_task_file.py").write_text(text)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    with pytest.raises(RequestError) as caught:
        load_task(f"{tmp_path}/a_task_file.py:Mine")
    assert words in str(caught.value) and "\n" not in str(caught.value)
    if "class" not in text and "x = 1" not in text:
        assert "a_task_file" not in set(sys.modules) - before
    sys.modules.pop("a_task_file", None)


def test_job_json_is_plain(job):
    "No value of it needs more than JSON, so that anything can read it."
    head = json.loads((write_job(job, Holds()) / "job.json").read_text())
    assert (
        head["task"] is None and head["task_class"] == "Holds" and all(isinstance(entry, str) for entry in head["path"])
    )
    assert head["request"]["config"]["seed"] == 3


def test_a_job_is_held_before_another_can_take_it_for_an_abandoned_one(tmp_path, monkeypatch):
    import spectrakit.launch.job as jobs

    folder, seen, lock = jobs.new_job_folder(tmp_path), [], jobs.try_lock

    def looked_at(handle):
        monkeypatch.setattr(jobs, "try_lock", lock)
        jobs.remove_abandoned_jobs(tmp_path)  # another trial begins at this moment
        seen.append(folder.is_dir())
        return lock(handle)

    monkeypatch.setattr(jobs, "try_lock", looked_at)
    with jobs.locked_job_folder(folder):
        jobs.remove_abandoned_jobs(tmp_path)
        assert seen == [True] and folder.is_dir()
    assert not folder.exists()
