"""Settings of torch that were made in a cell, in the training processes."""

import json

import pytest

from helpers import clean_environ, run_script

CELL = """
import json, sys, torch, spectrakit as sk
from torch.utils.data import TensorDataset
torch.set_default_dtype(torch.float64)
torch.set_float32_matmul_precision("medium")
torch.use_deterministic_algorithms(True)
torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32 = True, False
torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
torch.backends.cuda.enable_cudnn_sdp(False)
torch.set_num_threads(7)
torch.set_num_interop_threads(3)
torch.set_default_device("meta")  # what was asked of a GPU is never made in this process
torch.set_default_device("cuda")
class T(sk.Task):
    def datasets(self, cfg): return TensorDataset(torch.ones(64, 2, device="cpu")), None
    def model(self, cfg): return torch.nn.Linear(2, 1, device="cpu")
    def loss(self, model, batch):
        seen = [str(torch.get_default_dtype()), torch.get_float32_matmul_precision(), torch.get_num_threads(),
                torch.get_deterministic_debug_mode(), torch.backends.cudnn.deterministic,
                torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32, torch.get_num_interop_threads(),
                torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
                torch.backends.cuda.cudnn_sdp_enabled()]
        assert seen == ["torch.float64", "medium", 7, 2, True, False, False, 3, False, False], seen
        return model(batch[0]).mean()
SHORT = "trainer.accelerator=cpu", "trainer.max_epochs=1", "data.micro_batch_size=16"
run = sk.fit(T(), *SHORT, *sys.argv[1:], show=False)
run.raise_for_status()
print(json.dumps(json.load(open(run.path / "environment.json"))["decided"]["reasons"]["torch"]))
assert not torch.cuda.is_initialized()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [(), pytest.param(("trainer.devices=2",), marks=pytest.mark.long), ("launch.mode=torchrun", "trainer.devices=2")],
)
def test_settings_of_a_cell_count_in_each_rank_and_are_recorded(tmp_path, words):
    (tmp_path / "cell.py").write_text(CELL)
    done = run_script(tmp_path, tmp_path / "cell.py", *words, env=clean_environ())
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.strip().splitlines()[-1])
    assert (
        "default_dtype=float64" in said
        and "get_float32_matmul_precision=medium" in said
        and "cuda, used only in `loss`" in said
    )


DEVICE = """
import sys, torch, spectrakit as sk
from torch.utils.data import TensorDataset
class T(sk.Task):
    def datasets(self, cfg): return TensorDataset(torch.ones(64, 2)), TensorDataset(torch.ones(8, 2))
    def model(self, cfg): return torch.nn.Linear(2, 1)
    def loss(self, model, batch): return (model(batch[0]) - torch.ones(len(batch[0]), 1)).square().mean()
torch.set_default_device(sys.argv[1])
words = "trainer.accelerator=cpu", "trainer.max_epochs=1", "data.micro_batch_size=16", sys.argv[2]
print(sk.fit(T(), *words, show=False).raise_for_status().status)
assert torch._GLOBAL_DEVICE_CONTEXT.device_context.device.type == sys.argv[1]
"""


@pytest.mark.slow
@pytest.mark.parametrize("device, mode", [("cuda", "inline"), ("meta", "inline"), ("meta", "auto")])
def test_a_default_device_does_not_count_for_what_the_run_itself_makes(tmp_path, device, mode):
    (tmp_path / "cell.py").write_text(DEVICE)
    done = run_script(tmp_path, tmp_path / "cell.py", device, f"launch.mode={mode}", env=clean_environ())
    assert done.returncode == 0 and done.stdout.strip().splitlines()[-1] == "completed", done.stderr
