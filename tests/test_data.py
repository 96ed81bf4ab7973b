"Loader workers where the system makes it hard for them."
import os
import subprocess
import sys

import pytest

READ = """
from functools import partial
import torch
from torch.utils.data import TensorDataset
from spectrakit.batching import BatchPlan
from spectrakit.config import compose
from spectrakit.data import LoadedBatches, eval_cuts
samples = TensorDataset(torch.arange(8.0))
config = compose("dataloader.num_workers=1", "data.shuffle=false", "data.batch_size=4")
batches = LoadedBatches(samples, "cpu", partial(eval_cuts, BatchPlan(8, 4)), config, None)
print([batch.data[0].tolist() for batch in batches.epoch(0)])
"""


@pytest.mark.skipif(os.name == "nt", reason="no sockets with paths")
@pytest.mark.parametrize("length", [20, 60, 90, 140])
def test_a_folder_for_temporary_files_with_a_long_name_stops_no_worker(tmp_path, length):
    folder = tmp_path / ("x" * max(1, length - len(str(tmp_path)) - 1))
    folder.mkdir()
    done = subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True, timeout=90, env={**os.environ, "TMPDIR": str(folder)})
    assert done.stdout.strip() == "[[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]", done.stderr
    assert not list(folder.iterdir())
