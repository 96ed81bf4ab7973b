"What a command imports, and what a run starts, in counts that no machine changes."

import contextlib
import json
import subprocess
import sys

import pytest

from spectrakit.config.compose import compose, snapshot
from spectrakit.runs.events import SCHEMA, EventLog, log_file

COMPOSERS = ("hydra", "omegaconf", "antlr4")
HEAVY = ("torch", "numpy", "accelerate", "matplotlib", "pandas", "IPython")
COUNT = """
import contextlib, io, json, sys
from spectrakit.cli.main import main
sys.argv = ["spectrakit", *sys.argv[1:]]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main()
print(json.dumps([len(sys.modules), sorted({name.partition(".")[0] for name in sys.modules})]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "most"),
    [(("--help",), 260), (("profiles",), 260), (("runs",), 400), (("explain", "trainer.max_epochs"), 260)],
    ids=["help", "profiles", "runs", "explain"],
)
def test_a_command_imports_few_modules_and_none_that_is_heavy(tmp_path, words, most):
    done = subprocess.run([sys.executable, "-c", COUNT, *words], cwd=tmp_path, capture_output=True, text=True)
    count, names = json.loads(done.stdout.splitlines()[-1])
    assert count <= most and not set((*HEAVY, *COMPOSERS)) & set(names)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "runs", "most", "needed"),
    [("watch", 1, 380, ()), ("show", 1, 400, ()), ("compare", 2, 500, ("numpy",))],  # whose columns a comparison takes
    ids=["watch", "show", "compare"],
)
def test_a_command_that_reads_runs_imports_neither_hydra_nor_what_draws(tmp_path, command, runs, most, needed):
    names = [made_run(tmp_path / "runs" / f"made-{number}").name for number in range(runs)]
    done = subprocess.run([sys.executable, "-c", COUNT, command, *names], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    count, imported = json.loads(done.stdout.splitlines()[-1])
    assert count <= most and not ({*HEAVY, *COMPOSERS} - {*needed}) & {*imported}


def made_run(folder):
    "The files of a run that has ended, with some log points."
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text(snapshot(compose()))
    (folder / "environment.json").write_text("{}")
    with contextlib.closing(EventLog(log_file(folder))) as log:
        log.write("start", schema=SCHEMA, task="coffee", monitor="val_loss", mode="min", total_steps=9)
        for step in range(1, 10):
            log.write("step", step=step, epoch=step / 9, loss=1 / step, lr=0.1, samples_per_s=10.0)
        log.write("eval", step=9, epoch=1.0, metrics={"val_loss": 0.1}, best=True)
        log.write("end", status="completed", reason="all steps are done", step=9, monitor="val_loss")
    return folder


BEGIN = """
import json, subprocess, sys
import torch
import spectrakit as sk

started, popen = [], subprocess.Popen.__init__
def counted(self, args, *rest, **options):
    started.append([str(word) for word in ([args] if isinstance(args, str) else args)][:4])
    popen(self, args, *rest, **options)
subprocess.Popen.__init__ = counted

class Ten(sk.Task):
    def datasets(self, cfg):
        x = torch.linspace(0, 1, 80)[:, None]
        return torch.utils.data.TensorDataset(x, 2 * x), None

    def model(self, cfg):
        return torch.nn.Linear(1, 1)

    def loss(self, model, batch):
        return (model(batch[0]) - batch[1]).square().mean()

if __name__ == "__main__":
    words = ("trainer.accelerator=cpu", "data.micro_batch_size=8", "trainer.max_epochs=1", "launch.warm_worker=false")
    run = sk.fit(Ten(), sk.compose("local/accumulate_grad_batches=debug", *words), show=False)
    print(json.dumps([run.status, len(started), "hydra" in sys.modules, "torch._inductor" in sys.modules]))
"""


@pytest.mark.slow
def test_a_run_of_ten_steps_starts_one_process(tmp_path):
    "Beside it at most a question to the driver of GPUs, and one to git."
    (tmp_path / "ten.py").write_text(BEGIN)
    done = subprocess.run([sys.executable, "ten.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    status, started, _, inductor = json.loads(done.stdout.splitlines()[-1])
    assert status == "completed" and started <= 3 and not inductor
