"Folders that train elsewhere, tried as the place would use them: a stand-in for its client, and a real run on the CPU."

import os
import signal
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from helpers import clean_environ, run_cli, wait_for
from spectrakit.api.run import open_run

BATCH = ("trainer=smoke", "trainer.accelerator=cpu", "limits.max_train_batches=8", "trainer.max_epochs=3")

TASK = """
    import os
    import time
    from pathlib import Path

    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    import spectrakit as sk


    class Mine(sk.Task):
        "The first session is asked to stop at its 15th loss, beyond the check; SLOW: so many seconds a step."

        def datasets(self, cfg):
            x = torch.randn(64, 3, generator=torch.Generator().manual_seed(1))
            return TensorDataset(x, x.sum(1, keepdim=True)), TensorDataset(x[:8], x[:8].sum(1, keepdim=True))

        def test_dataset(self, cfg):
            return TensorDataset(torch.zeros(4, 3))

        def model(self, cfg):
            return nn.Linear(3, 1)

        def loss(self, model, batch):
            self.count = getattr(self, "count", 0) + 1
            if self.count == 15 and not Path(os.environ["SEEN"]).exists():
                Path(os.environ["SEEN"]).touch()
                self.pause_s = float(os.environ.get("SLOW", "0.2"))  # it is looked whether to stop five times a second
                if "SLOW" not in os.environ:
                    for run in Path(os.environ["RUNS"]).iterdir():
                        (run / "STOP").touch()
            time.sleep(getattr(self, "pause_s", 0))
            return nn.functional.mse_loss(model(batch[0]), batch[1])

        def submission(self, predictions):
            return {"id": range(len(predictions)), "target": predictions[:, 0]}
"""


@pytest.fixture
def place(tmp_path):
    "A folder with a task, and the variables that it reads: `(folder, variables)`."
    (tmp_path / "my_task.py").write_text(textwrap.dedent(TASK), encoding="utf-8")
    return tmp_path, {"SEEN": str(tmp_path / "seen")}


def init(folder: Path, name: str, *words: str) -> Path:
    "What `spectrakit cloud init NAME` has written."
    done = run_cli(folder, "cloud", "init", name, "job", "--task", "my_task.py:Mine", *words)
    assert done.returncode == 0, done.stderr
    assert "spectrakit train my_task.py:Mine" in done.stdout and "+limits.max_train_batches=1" in done.stdout
    return folder / "job"


FAKE_MODAL = """
    "The parts of Modal's client that app.py uses, as its documentation has them: calls are made here, with retries."
    import os
    import tempfile
    from dataclasses import dataclass

    @dataclass
    class Retries:
        max_retries: int
        initial_delay: float = 1.0
        backoff_coefficient: float = 2.0

    class Image:
        steps = []
        @classmethod
        def from_registry(cls, tag, add_python=None):
            cls.steps.append(("from_registry", tag, add_python))
            return cls()
        def __getattr__(self, name):
            if name not in ("env", "run_commands", "add_local_file", "add_local_dir"):
                raise AttributeError(name)
            return lambda *words, **more: (self.steps.append((name, *words)), self)[1]

    @dataclass
    class Volume:
        name: str
        commits: int = 0
        @classmethod
        def from_name(cls, name, create_if_missing=False):
            return cls(name)
        def commit(self):
            self.commits += 1

    class Secret:
        @staticmethod
        def from_name(name):
            return name

    class Function:
        def __init__(self, call, options):
            self.call, self.options, self.attempts = call, options, 0
        def remote(self, *words):
            assert self.options["timeout"] <= 24 * 3600, "as Modal says"
            for attempt in range(1 + self.options["retries"].max_retries):
                self.attempts += 1
                os.environ["HOME"] = tempfile.mkdtemp()  # another container
                try:
                    return self.call(*words)
                except Exception as error:
                    print("attempt", self.attempts, "failed:", type(error).__name__, error, flush=True)
            raise RuntimeError("all attempts failed")

    class App:
        def __init__(self, name, image=None):
            self.name = name
        def function(self, **options):
            return lambda call: Function(call, options)
        def local_entrypoint(self):
            return lambda call: call

    def is_local():
        return True
"""


def modal(folder: Path, variables: dict, call: str) -> subprocess.CompletedProcess:
    "What `modal run app.py` does, with the stand-in; what is absolute in a container lies below `folder`."
    (folder / "client").mkdir(exist_ok=True)
    (folder / "client" / "modal.py").write_text(textwrap.dedent(FAKE_MODAL), encoding="utf-8")
    (folder / "results").mkdir(exist_ok=True)
    app, text = folder / "there.py", (folder / "job" / "app.py").read_text(encoding="utf-8")
    for path, real in (("/results", "results"), ("/job", "job"), ("/tmp/asked", "asked")):
        text = text.replace(path, str(folder / real))
    app.write_text(text, encoding="utf-8")
    script = f"import there\n{call}\nprint('attempts', there.session.attempts, 'commits', there.results.commits)"
    environ = (
        clean_environ() | variables | {"PYTHONPATH": f"{folder / 'client'}:{folder}:{os.environ.get('PYTHONPATH', '')}"}
    )
    return subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )


@pytest.mark.long  # a SLURM job goes on the same way
@pytest.mark.slow
def test_an_app_for_modal_goes_on_in_another_container_until_the_run_is_done(place):
    folder, variables = place
    job = init(folder, "modal", "--hours", "30", "--env-from", "wandb", "--data", "spectra")
    assert {path.suffix for path in job.iterdir()} == {".py", ".whl"} and (job / "my_task.py").is_file()
    settings = folder / "mine.yaml"
    settings.write_text("defaults:\n  - trainer: smoke\n  - _self_\ntrainer:\n  max_epochs: 3\n  accelerator: cpu\n")
    variables["RUNS"] = str(folder / "results" / "runs")
    done = modal(folder, variables, f"there.main(action='train', config={str(settings)!r}, overrides='seed=7')")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "attempt 1 failed: ToBeContinued" in done.stdout and "attempts 2 commits 2" in done.stdout
    run = open_run(next((folder / "results" / "runs").iterdir()))
    assert run.status == "completed" and run.config.seed == 7 and run.events[-1]["step"] == 24
    name = run.path.name
    done = modal(folder, variables, f"there.main(action='predict', resume={name!r})")
    table = (folder / "results" / "submission.csv").read_text().splitlines()
    assert len(table) == 5 and table[0] == "id,target", done.stdout + done.stderr
    done = modal(folder, variables, "there.main(action='train', config='smoke', overrides='task.none=1')")
    assert done.returncode == 2 and "ended with" in done.stdout  # what is wrong is told, and not tried ten times
    assert "none of train" in modal(folder, variables, "there.main(action='trian')").stderr
    assert "needs --resume" in modal(folder, variables, "there.main(action='predict')").stderr


@pytest.mark.slow
def test_a_slurm_job_that_is_told_to_end_saves_is_queued_again_and_goes_on(place):
    folder, variables = place
    job = init(folder, "slurm", "--partition", "gpu", "--gpus", "2", "--hours", "12", "--profile", "smoke")
    tools = folder / "tools"
    tools.mkdir()
    (tools / "scontrol").write_text('#!/bin/sh\necho "$@" >> "$QUEUED"\n')
    (tools / "scontrol").chmod(0o755)
    (tools / "python").symlink_to(sys.executable)
    queued = folder / "queued"
    environ = (
        clean_environ()
        | variables
        | {
            "PATH": f"{Path(sys.executable).parent}:{tools}:{os.environ['PATH']}",
            "QUEUED": str(queued),
            "RUNS": str(job / "runs"),
            "SLURM_JOB_ID": "41",
            "SLURM_SUBMIT_DIR": str(job),
        }
    )
    words = ["bash", "train.sbatch", *BATCH]

    first = subprocess.Popen(words, cwd=job, env=environ | {"SLOW": "2"}, stdout=subprocess.PIPE, text=True)
    wait_for(lambda: Path(variables["SEEN"]).exists() or first.poll() is not None, "the 15th loss")
    first.send_signal(signal.SIGTERM)
    out = first.communicate(timeout=240)[0]
    assert first.returncode == 0 and "to be continued" in out, out
    assert queued.read_text().split() == ["requeue", "41"]
    run = open_run(next((job / "runs").iterdir()))
    assert run.status == "interrupted" and 0 < run.events[-1]["step"] < 24

    second = subprocess.run(words, cwd=job, env=environ, capture_output=True, text=True, check=False, timeout=240)
    assert second.returncode == 0, second.stdout + second.stderr
    run = open_run(next((job / "runs").iterdir()))
    assert run.status == "completed" and run.events[-1]["step"] == 24
    assert queued.read_text().split() == ["requeue", "41"]  # once


FAKE_COLAB = """
    "The commands of Google's client that session.sh uses: a session is a folder, /content is that folder."
    import os, shutil, subprocess, sys
    from pathlib import Path

    state = Path(os.environ["FAKE_COLAB"])
    word, *rest = sys.argv[1:]
    name = rest[rest.index("-s") + 1]
    there = lambda path: state / name / path.removeprefix("/content/")
    more = [text for i, text in enumerate(rest) if text != "-s" and (i == 0 or rest[i - 1] != "-s")]
    with open(state / "log", "a") as log:
        print(word, *more, file=log)
    if word == "new":
        (state / name).mkdir()
    elif word == "upload":
        shutil.copy(more[0], there(more[1]))
    elif word == "download":
        shutil.copy(there(more[0]), more[1])
    elif word == "exec":
        assert float(more[more.index("--timeout") + 1]) > 3600, "the client's own limit is 30 seconds"
        text = Path(more[more.index("-f") + 1]).read_text()
        sys.exit(subprocess.run([sys.executable, "-c", text], cwd=state / name, check=False).returncode)
    elif word == "stop":
        shutil.rmtree(state / name)
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_session_on_colab_brings_the_run_home_and_the_next_one_goes_on(place):
    folder, variables = place
    job = init(folder, "colab", "--profile", "smoke", "--gpu", "L4")
    (job / "train.py").write_text((job / "train.py").read_text().replace("OVERRIDES = []", f"OVERRIDES = {[*BATCH]}"))
    tools, state = folder / "tools", folder / "colab"
    tools.mkdir()
    state.mkdir()
    (folder / "fake.py").write_text(textwrap.dedent(FAKE_COLAB), encoding="utf-8")
    (tools / "colab").write_text(f'#!/bin/sh\nexec "{sys.executable}" "{folder / "fake.py"}" "$@"\n')
    (tools / "colab").chmod(0o755)
    environ = (
        clean_environ()
        | variables
        | {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "FAKE_COLAB": str(state),
            "RUNS": str(state / "job" / "runs"),
            "PIP_TARGET": str(folder / "site"),  # this environment is not the session's
            "PIP_NO_DEPS": "1",
            "PIP_NO_INDEX": "1",
        }
    )
    said = ["to be continued", "spectrakit: done"]
    for expected, status in zip(said, ("interrupted", "completed"), strict=True):
        done = subprocess.run(["./session.sh"], cwd=job, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and expected in done.stdout, done.stdout + done.stderr
        with zipfile.ZipFile(job / "results.zip") as packed:
            packed.extractall(folder / status)
        assert open_run(next((folder / status / "runs").iterdir())).status == status
        assert [path.name for path in state.iterdir()] == ["log"]  # the session is given back
    log = (state / "log").read_text()
    assert "new --gpu L4" in log and log.count("upload results.zip /content/earlier.zip") == 1
    assert (folder / "site" / "spectrakit").is_dir()


@pytest.mark.parametrize(
    "words, parts",
    [
        (["modl", "x"], ["'modl'", "Did you mean 'modal'?"]),
        (["modal", "x", "--task", "none.py:Mine"], ["none.py"]),
        (["modal", "x", "--task", "my_task.py:Mien"], ["Did you mean 'Mine'?"]),
        (["modal", "x", "--hours", "0"], ["--hours 0", "0.25 to 200"]),
        (["modal", "x", "--profile", "a10"], ["a10", "Did you mean"]),
        (["modal", "x", "--partition", "gpu"], ["--partition is for SLURM"]),
        (["modal", "x", "--env-from", "a;rm -rf b"], ["--env-from 'a;rm -rf b' is not a name"]),
        (["modal", "x", "--name", "Two Words"], ["'Two Words'", "--name first-run"]),
        (["slurm", "x", "--gpus", "0"], ["--gpus 0", "1 to 16"]),
        (["slurm", "x", "--cores", "many"], ["--cores many"]),
        (["slurm", "x", "--data", "spectra"], ["--data is not for SLURM"]),
        (["slurm", "x", "--account", "a b"], ["--account 'a b'"]),
        (["slurm", "x", "--account", "a\n#SBATCH --uid=0"], ["--account"]),
        (["colab", "x", "--gpu", "A100-80GB"], ["no GPU 'A100-80GB'", "T4, L4"]),
        (["colab", "x", "--env-from", "wandb"], ["Leave --env-from out"]),
        (["colab", "my_task.py"], ["my_task.py"]),
    ],
)
def test_what_is_wrong_is_a_sentence_and_nothing_is_written(place, words, parts):
    folder, _ = place
    before = sorted(folder.rglob("*"))
    done = run_cli(folder, "cloud", "init", *words)
    assert done.returncode == 2 and all(part in done.stderr for part in parts), done.stderr
    assert "Traceback" not in done.stderr and sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("name, where", [("app.py", "modal"), ("train.py", "colab"), ("modal.py", "slurm")])
def test_a_task_named_as_a_script_or_what_it_imports_does_not_take_its_place(place, name, where):
    folder, _ = place
    (folder / name).write_text("class Mine: ...\n")
    done = run_cli(folder, "cloud", "init", where, "x", "--task", f"{name}:Mine")
    assert done.returncode == 2 and f"named {name} is in the way" in done.stderr and not (folder / "x").exists()


@pytest.mark.slow
def test_what_a_built_in_task_reads_its_data_with_is_installed_there(place):
    folder, _ = place
    for where, script in (("modal", "app.py"), ("slurm", "train.sbatch"), ("colab", "train.py")):
        assert run_cli(folder, "cloud", "init", where, where).returncode == 0
        assert "chemotools" in (folder / where / script).read_text()


@pytest.mark.slow
def test_what_is_there_is_kept_unless_it_is_forced(place):
    folder, _ = place
    job = init(folder, "modal")
    (job / "app.py").write_text("# mine\n")
    done = run_cli(folder, "cloud", "init", "modal", "job", "--task", "my_task.py:Mine")
    assert done.returncode == 2 and "app.py and my_task.py are in 'job' already" in done.stderr
    assert (job / "app.py").read_text() == "# mine\n"
    init(folder, "modal", "--force")
    assert "modal.App" in (job / "app.py").read_text()
    inside = run_cli(job, "cloud", "init", "slurm", ".", "--task", "my_task.py:Mine", "--name", "job")
    assert inside.returncode == 0, inside.stderr  # beside its own task: that file stays
