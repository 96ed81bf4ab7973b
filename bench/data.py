"""What it costs to bring a batch to the loop: `python bench/data.py [--seconds S] [--json FILE]`.

Every table has the microseconds of processor time a sample, of the thread that reads. The ways take turns within a
round, there and back; the figure is the median over rounds, the least is beside it, and × is the median of the ratios
to the first way, each round compared with itself. Nobody reads ahead: a worker's work costs its own processor the same.
"""

import argparse
import json
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import numpy
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from spectrakit.config.compose import compose
from spectrakit.config.effective_batch import BatchPlan
from spectrakit.data.array_rows import ArrayDataset
from spectrakit.data.loaders import train_batches
from spectrakit.data.sample_order import EpochPlan, train_cuts

SIZE = 32  # samples in a batch
FEATURES = 64
Ways = dict[str, Callable[[], Iterator]]


class OneByOne(Dataset):
    "Rows of a tensor and a number, one by one, as most data sets are written."

    def __init__(self, x: torch.Tensor, y: torch.Tensor):
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple:
        return self.x[index], self.y[index]


class ManyAtOnce(OneByOne):
    "The same, with torch's way to fetch many."

    def __getitems__(self, indices: list[int]) -> list[tuple]:
        rows = torch.tensor(indices)
        return list(zip(self.x[rows], self.y[rows], strict=True))


class Drawing(OneByOne):
    "The same, with noise."

    def __getitem__(self, index: int) -> tuple:
        return self.x[index] + torch.rand(()), self.y[index]


class MappedOneByOne(Dataset):
    "Rows of an array in a file, one by one."

    def __init__(self, rows: numpy.ndarray):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self.rows[index].copy())


def kit(dataset, *words: str) -> Callable[[], Iterator]:
    "Batches of the kit, a new epoch with each call."
    config = compose(
        "local/accumulate_grad_batches=debug", "dataloader.num_workers=0", f"data.micro_batch_size={SIZE}", *words
    )
    batches, epoch = train_batches(dataset, BatchPlan(len(dataset), SIZE), config), iter(range(10**9))
    return lambda: batches.epoch(next(epoch))


def loader(dataset) -> Callable[[], Iterator]:
    return lambda: iter(DataLoader(dataset, batch_size=SIZE, shuffle=True))


def by_hand(*columns: torch.Tensor) -> Iterator:
    for rows in torch.randperm(len(columns[0])).split(SIZE):
        yield [column[rows] for column in columns]


def mapped_by_hand(rows: numpy.ndarray) -> Iterator:
    for indices in torch.randperm(len(rows)).split(SIZE):
        ascending, back = indices.sort()
        found = torch.empty(len(indices), *rows.shape[1:])
        found[back] = torch.from_numpy(rows[ascending.numpy()])
        yield found


def measured(ways: Ways, seconds: float, batches: int) -> dict[str, dict[str, float]]:
    "Microseconds a sample of each way; `batches` are read in a turn, the first ones of an epoch before it."
    times: dict[str, list[float]] = {name: [] for name in ways}
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(times[next(iter(ways))]) < 6:
        for name in [*ways, *reversed(ways)]:
            reading = ways[name]()
            next(reading)
            began = time.thread_time()
            read = sum(1 for _ in islice(reading, batches))
            times[name].append((time.thread_time() - began) / read / SIZE * 1e6)
    first = times[next(iter(ways))]
    return {
        name: {
            "median_us": statistics.median(each),
            "least_us": min(each),
            "ratio": statistics.median(one / other for one, other in zip(each, first, strict=True)),
        }
        for name, each in times.items()
    }


def small_samples(seconds: float) -> dict:
    x, y = torch.rand(20_000, FEATURES), torch.arange(20_000)
    one, many, drawing = OneByOne(x, y), ManyAtOnce(x, y), Drawing(x, y)
    tensors = TensorDataset(x, y)
    return {
        "a TensorDataset": measured(
            {
                "by hand": lambda: by_hand(x, y),
                "kit, on the device": kit(tensors),
                "kit, in host memory": kit(tensors, "data.resident_gib=1e-9"),
                "DataLoader": loader(tensors),
            },
            seconds,
            400,
        ),
        "one by one": measured({"DataLoader": loader(one), "kit": kit(one)}, seconds, 100),
        "__getitems__": measured({"DataLoader": loader(many), "kit": kit(many)}, seconds, 100),
        "one by one, drawing": measured({"DataLoader": loader(drawing), "kit": kit(drawing)}, seconds, 100),
    }


def cliff(seconds: float) -> dict:
    "The same samples just below and just above the size up to which they are held on the device."
    rows = 2**20
    data = TensorDataset(torch.rand(rows, FEATURES))
    gib = data.tensors[0].nbytes / 2**30
    below, above = kit(data, f"data.resident_gib={gib * 1.01}"), kit(data, f"data.resident_gib={gib * 0.99}")
    ways = {"by hand": lambda: by_hand(data.tensors[0]), "kit, just below": below, "kit, just above": above}
    return {f"a TensorDataset of {gib:.2g} GiB": measured(ways, seconds, 1000)}


def at_a_gib(seconds: float) -> dict:
    "As many samples as are just held on the device by default, and a few more: by default both, nothing is scaled."
    just = 2**30 // (4 * FEATURES)
    rows = torch.rand(just + 2**14, FEATURES)
    below, above = TensorDataset(rows[: just - 2**14]), TensorDataset(rows)
    ways = {"by hand": lambda: by_hand(rows), "kit, 0.996 GiB": kit(below), "kit, 1.004 GiB": kit(above)}
    return {"a TensorDataset around 1 GiB": measured(ways, seconds, 1000)}


def safetensors_by_hand(path: Path) -> Iterator:
    "As the format is read by most: a slice for each sample."
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        rows = file.get_slice("rows")
        for indices in torch.randperm(rows.get_shape()[0]).split(SIZE):
            yield torch.stack([rows[index] for index in indices.tolist()])


def hdf5_by_hand(path: Path) -> Iterator:
    "In one call for a batch, in ascending order, as h5py asks for it."
    import h5py

    with h5py.File(path) as file:
        for indices in torch.randperm(len(file["rows"])).split(SIZE):
            ascending, back = indices.sort()
            found = torch.empty(len(indices), *file["rows"].shape[1:])
            found[back] = torch.from_numpy(file["rows"][ascending.numpy()])
            yield found


def parquet_by_hand(path: Path) -> Iterator:
    "The whole table in memory, as a tensor, before the first batch."
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path)
    yield from by_hand(torch.from_numpy(numpy.stack([column.to_numpy() for column in table.columns], 1)))


def other_files(seconds: float) -> dict:
    "The same rows of 4 KB in other files; of Parquet rows of 64 columns."
    import h5py
    import pyarrow
    import pyarrow.parquet
    from safetensors.torch import save_file

    rows = torch.rand(20_000, 1024, generator=torch.Generator().manual_seed(0))
    names = [f"c{number}" for number in range(FEATURES)]
    with tempfile.TemporaryDirectory() as folder:
        paths = {ending: Path(folder) / f"rows.{ending}" for ending in ("safetensors", "h5", "parquet")}
        save_file({"rows": rows}, paths["safetensors"])
        with h5py.File(paths["h5"], "w") as file:
            file["rows"] = rows.numpy()
        columns = dict(zip(names, rows[:, :FEATURES].T.numpy(), strict=True))
        pyarrow.parquet.write_table(pyarrow.table(columns), paths["parquet"])
        hands = {"safetensors": safetensors_by_hand, "h5": hdf5_by_hand, "parquet": parquet_by_hand}
        return {
            f"rows of a .{ending}": measured(
                {
                    "by hand": partial(hands[ending], path),
                    "kit, ArrayDataset": kit(
                        ArrayDataset((path, names) if ending == "parquet" else path), "data.resident_gib=1e-9"
                    ),
                },
                seconds,
                100,
            )
            for ending, path in paths.items()
        }


def mapped(seconds: float) -> dict:
    "Rows of 4 KB in a file."
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        numpy.save(path, numpy.random.default_rng(0).random((20_000, 1024), dtype=numpy.float32))
        rows = numpy.load(path, mmap_mode="r")
        ways = {
            "by hand, sorted": lambda: mapped_by_hand(rows),
            "kit, ArrayDataset": kit(ArrayDataset(path), "data.resident_gib=1e-9"),
            "DataLoader, one by one": loader(MappedOneByOne(rows)),
            "kit, one by one": kit(MappedOneByOne(rows)),
        }
        return {"rows of 4 KB in a file": measured(ways, seconds, 100)}


def orders() -> list[dict]:
    "The first batch of an epoch, and all of them, by the number of samples."
    found = []
    for samples in (10**5, 10**6, 10**7, 10**8):
        plan = EpochPlan(partial(train_cuts, BatchPlan(samples, SIZE)), shuffle=True)
        next(EpochPlan(partial(train_cuts, BatchPlan(SIZE, SIZE)), shuffle=True).keys(SIZE, 0))
        tracemalloc.start()
        began = time.thread_time()
        next(keys := plan.keys(samples, 0))
        first_s = time.thread_time() - began
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        order = plan.order(samples, 0)
        began = time.thread_time()
        read = sum(len(part.indices) for part in islice(keys, 20_000))
        found.append(
            {
                "samples": samples,
                "first_batch_s": first_s,
                "us_a_sample": (time.thread_time() - began) / read * 1e6,
                "order_bytes_a_sample": getattr(order, "nbytes", 0) / samples,
                "python_bytes": held,
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8, help="for each table")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    tables = {**small_samples(asked.seconds), **cliff(asked.seconds), **at_a_gib(asked.seconds)}
    tables |= {**mapped(asked.seconds), **other_files(asked.seconds)}
    for name, ways in tables.items():
        print(f"{name}: µs a sample")
        for way, found in ways.items():
            print(f"  {way:24} {found['median_us']:7.2f}  least {found['least_us']:7.2f}  × {found['ratio']:.2f}")
    print("the order of an epoch")
    sizes = orders()
    for row in sizes:
        print(
            f"  {row['samples']:>11,} samples: first batch after {row['first_batch_s'] * 1e3:8.2f} ms, then "
            f"{row['us_a_sample']:.3f} µs a sample; {row['order_bytes_a_sample']:.0f} bytes a sample, "
            f"{row['python_bytes'] / 1024:.0f} KiB of Python's"
        )
    if asked.json:
        asked.json.write_text(
            json.dumps({"torch": torch.__version__, "tables": tables, "orders": sizes}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
