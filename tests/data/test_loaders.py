"Loader workers where the system makes it hard for them."

import os
import subprocess
import sys
from functools import partial

import psutil
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, Subset

import spectrakit as sk
from helpers import wait_for
from spectrakit.config.effective_batch import BatchPlan
from spectrakit.data.loaders import LoadedBatches
from spectrakit.data.sample_order import EpochPlan, train_cuts

pytestmark = pytest.mark.slow  # every test here starts processes

READ = """
from functools import partial
import torch
from torch.utils.data import TensorDataset
from spectrakit.config.effective_batch import BatchPlan
from spectrakit.config.compose import compose
from spectrakit.data.loaders import LoadedBatches
from spectrakit.data.sample_order import EpochPlan, eval_cuts
samples = TensorDataset(torch.arange(8.0))
config = compose("dataloader.num_workers=1", "data.shuffle=false", "data.batch_size=4")
batches = LoadedBatches(samples, "cpu", EpochPlan(partial(eval_cuts, BatchPlan(8, 4))), config.dataloader)
print([batch.data[0].tolist() for batch in batches.epoch(0)])
"""


@pytest.mark.skipif(os.name == "nt", reason="no sockets with paths")
@pytest.mark.parametrize("length", [20, 60, 90, 140])
def test_a_folder_for_temporary_files_with_a_long_name_stops_no_worker(tmp_path, length):
    folder = tmp_path / ("x" * max(1, length - len(str(tmp_path)) - 1))
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", READ],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    assert done.stdout.strip() == "[[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]", done.stderr
    assert not list(folder.iterdir())


ORPHAN = """
import os, sys, time
from functools import partial
from torch.utils.data import DataLoader
from spectrakit.data.loaders import end_with_parent

def late(parent, worker):
    print(os.getpid(), flush=True)
    while os.getppid() == parent: time.sleep(0.01)  # until the parent is gone
    end_with_parent(parent, worker)

class Endless:
    def __len__(self): return 10**9
    def __getitem__(self, index): return index

iter(DataLoader(Endless(), num_workers=1, worker_init_fn=partial(late, os.getpid())))
time.sleep(60)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells a process that its parent has ended")
def test_a_worker_whose_process_was_killed_while_it_began_ends(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True)
    worker = psutil.Process(int(process.stdout.readline()))
    process.kill()
    process.wait()
    process.stdout.close()

    def ended() -> bool:
        return not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE

    try:
        wait_for(ended, "the worker to end")
    finally:
        if not ended():
            worker.kill()


LOSSES = """
import os, resource, shutil, signal, sys, tempfile
from multiprocessing.util import get_temp_dir
from functools import partial
import torch
from torch.utils.data import get_worker_info
from spectrakit.config.effective_batch import BatchPlan
from spectrakit.config.compose import compose
from spectrakit.data.loaders import LoadedBatches
from spectrakit.data.sample_order import EpochPlan, train_cuts

class Noisy:
    trouble = ""

    def __len__(self):
        return 48

    def __getitem__(self, index):
        if self.trouble == "killed" and index == 17 and get_worker_info():
            os.kill(os.getpid(), signal.SIGKILL)
        if self.trouble == "temporary" and get_worker_info():
            tempfile.tempdir = "/no such folder"  # as if it was removed, or is full, when the worker first needs it
        if self.trouble == "removed" and index == 17 and get_worker_info():
            shutil.rmtree(get_temp_dir())  # with the socket over which the worker hands over
        return index + torch.rand(60_000)

def read(workers, said):
    words = ["dataloader.persistent_workers=true"] * (workers > 0)
    settings = compose(f"dataloader.num_workers={workers}", *words).dataloader
    plan = EpochPlan(partial(train_cuts, BatchPlan(48, 2)), shuffle=True)
    batches = LoadedBatches(Noisy(), "cpu", plan, settings)
    batches.workers.report = said.append
    return torch.stack([batch.data for epoch in (1, 2) for batch in list(batches.epoch(epoch))])

calm, said = read(0, []), []
Noisy.trouble = sys.argv[1]
before = signal.getsignal(signal.SIGCHLD)
if Noisy.trouble == "files":
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
assert torch.equal(calm, read(4, said)) and signal.getsignal(signal.SIGCHLD) == before
print(*said, sep="\\n")
"""


def with_shared_memory(options: str) -> list[str]:
    "The beginning of a command that runs with a /dev/shm of its own."
    return ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o {options} none /dev/shm && exec "$@"', "sh"]


MOUNTED = {"memory": "size=400k", "read-only": "ro", "inodes": "nr_inodes=2"}


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="signals and shared memory as Linux has them")
@pytest.mark.parametrize(
    ("trouble", "says"),
    [
        (
            "killed",
            "lost one of them; often the machine runs out of memory: reading goes on with 2 workers, and the same",
        ),
        pytest.param(
            "files", "ran out of open files: they share memory through the file system now", marks=pytest.mark.long
        ),
        pytest.param(
            "memory",
            "--shm-size or --ipc=host): reading goes on with 2 workers, and the same samples",
            marks=pytest.mark.long,
        ),
        (
            "read-only",
            "Read-only file system (/dev/shm is read-only): reading goes on with no workers, in the training",
        ),
        ("inodes", "No space left on device (in /dev/shm, where semaphores are kept): reading goes on with no workers"),
        pytest.param(
            "removed",
            "could not hand over a batch: FileNotFoundError: [Errno 2] No such file or directory",
            marks=pytest.mark.long,
        ),
        ("temporary", "hand over a batch: FileNotFoundError: [Errno 2] No such file or directory: '/no such folder/"),
    ],
)
def test_lost_workers_change_no_bit_and_are_told(tmp_path, trouble, says):
    before = with_shared_memory(MOUNTED[trouble]) if trouble in MOUNTED else []
    if before and subprocess.run([*before, "true"], capture_output=True).returncode:
        pytest.skip("no other /dev/shm can be mounted here")
    done = subprocess.run(
        [*before, sys.executable, "-c", LOSSES, trouble],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    most = 4 if trouble == "files" else 3  # one more sentence, on how memory is shared, before workers are fewer
    assert says in lines[0] and len(lines) == len(set(lines)) <= most, lines


class Streams(Dataset):
    "Samples that no worker can hand over."

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return (float(index) for _ in range(1))


def test_a_batch_that_cannot_be_sent_is_read_in_the_training_process():
    "It was dropped, and waited for without an end."
    settings = sk.compose("dataloader.num_workers=2").dataloader
    plan, said = EpochPlan(partial(train_cuts, BatchPlan(8, 4)), shuffle=False), []
    batches = LoadedBatches(Streams(), "cpu", plan, settings, collate=lambda samples: iter(samples))
    batches.workers.report = said.append
    read = [[next(sample) for sample in batch.data] for batch in batches.epoch(1)]
    assert read == [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]
    assert len(said) == 1 and "could not hand over a batch: TypeError: cannot pickle" in said[0]


class Full(Streams):
    def __getitem__(self, index):
        raise OSError(28, "No space left on device", "/mine/cache")


def test_a_disk_of_the_tasks_own_that_is_full_is_not_taken_for_shared_memory():
    settings, said = sk.compose("dataloader.num_workers=1").dataloader, []
    batches = LoadedBatches(Full(), "cpu", EpochPlan(partial(train_cuts, BatchPlan(8, 4))), settings)
    batches.workers.report = said.append
    with pytest.raises(OSError, match="/mine/cache"):
        list(batches.epoch(1))
    assert said == []


class Files(Dataset):
    "Pictures, of which one is broken."

    def __len__(self):
        return 60

    def __getitem__(self, index):
        if index == 47:
            raise OSError("cannot identify image file 'train/47.png'")
        return torch.zeros(3), 0


class Pictures(sk.Task):
    def datasets(self, cfg):
        return Subset(Files(), range(10, 60)), Subset(Files(), range(10))

    def model(self, cfg):
        return nn.Linear(3, 2)

    def loss(self, model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_that_cannot_be_read_is_named_in_one_line(tmp_path, workers):
    words = ("launch.mode=inline", "trainer.accelerator=cpu", "data.batch_size=10", f"run.dir={tmp_path}")
    run = sk.fit(Pictures(), sk.compose(*words, f"dataloader.num_workers={workers}"), show=False, on_error="return")
    says = "OSError: cannot identify image file 'train/47.png', at sample 47 of the data set"
    assert (run.status, run.error) == ("failed", says)
