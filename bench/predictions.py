"""Predictions on disk beside `numpy.savez`: `python bench/predictions.py [--mb 400] [--json FILE]`.

Each way is a process of its own that runs the same model over the same samples, and ends with predictions.npz:
spectrakit's `predict_dataset` and `save_arrays`; a loop by hand that keeps all outputs and calls `numpy.savez`; and
that loop with `savez_compressed`. The ways take turns. Seconds are those after the imports. The memory is the largest
resident size beyond that before the first batch; pages of files, which the system takes back at will, are told apart.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROUND = 64  # samples of a batch
WIDTH = 2**14  # numbers of a sample: 64 kB


def resident() -> tuple[float, float]:
    "MB of this process that are its own, and those of mapped files."
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    own, mapped = (int(fields[name].split()[0]) / 1024 for name in ("RssAnon", "RssFile"))
    return own, mapped


class Peak:
    "The largest resident sizes from now on, looked at a hundred times a second."

    def __init__(self) -> None:
        self.before, self.most, self.over = resident(), (0.0, 0.0), threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def watch(self) -> None:
        while not self.over.wait(0.01):
            self.most = tuple(map(max, self.most, resident()))

    def stop(self) -> tuple[float, float]:
        self.over.set()
        self.thread.join()
        return tuple(a - b for a, b in zip(map(max, self.most, resident()), self.before, strict=True))


def predict(way: str, samples: int, folder: Path) -> dict:
    "Predict in this process; what it took."
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from spectrakit.config.compose import compose
    from spectrakit.distributed.context import create_run_context
    from spectrakit.jobs.prediction import predict_dataset, save_arrays
    from spectrakit.system.platforms.detect import detect
    from spectrakit.task.task import Task

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Linear(8, WIDTH).eval()
    data = TensorDataset(torch.randn(samples, 8))

    class Made(Task):
        def predict(self, model, batch):
            return model(batch[0])

    cfg = compose("local/accumulate_grad_batches=debug", "trainer.accelerator=cpu", f"data.micro_batch_size={ROUND}")
    context = create_run_context(cfg, detect({"PATH": ""}, shell=""))
    peak, began = Peak(), time.perf_counter()
    with torch.no_grad():
        if way == "spectrakit":
            save_arrays(folder / "predictions.npz", predict_dataset(Made(), model, data, cfg, context, folder))
        else:
            outputs = [model(x).numpy() for (x,) in DataLoader(data, batch_size=ROUND)]
            save = np.savez if way == "savez" else np.savez_compressed
            save(folder / "predictions.npz", predictions=np.concatenate(outputs))
    took_s = time.perf_counter() - began
    own, mapped = peak.stop()
    return {"seconds": took_s, "own_mb": own, "mapped_mb": mapped}


WAYS = ("spectrakit", "savez", "savez_compressed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=400, help="of predictions (400)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each way (3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    samples = options.mb * 2**20 // (4 * WIDTH)
    if options.way:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(predict(options.way, samples, Path(folder))))
        return
    taken: dict[str, list[dict]] = {way: [] for way in WAYS}
    for _ in range(options.rounds):
        for way, rows in taken.items():
            command = [sys.executable, __file__, "--mb", str(options.mb), "--way", way]
            rows.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
    results = {}
    print(f"{options.mb} MB of predictions, {options.rounds} runs of each way in turn, medians\n")
    print(f"{'':18} {'seconds':>8} {'MB/s':>7} {'own memory':>11} {'mapped':>8}")
    for way, rows in taken.items():
        found = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
        results[way] = {**found, "all_seconds": [row["seconds"] for row in rows]}
        speed = options.mb / found["seconds"]
        print(
            f"{way:18} {found['seconds']:8.2f} {speed:7.0f} {found['own_mb']:8.0f} MB {found['mapped_mb']:5.0f} MB",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps({"mb": options.mb, "rounds": options.rounds, "results": results}) + "\n")


if __name__ == "__main__":
    main()
