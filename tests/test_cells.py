"""The cells of the notebooks in nbs/, as `nbdev_test` runs them; each notebook has a process of its own.

`pytest tests/test_cells.py -k 07_loop` runs those of one. Without the slow tests, cells with `#| slow` are left out.
"""

from pathlib import Path

import pytest
from nbdev.config import get_config

import fork_server
from helpers import clean_environ

NBS = Path(__file__).resolve().parent.parent / "nbs"
NOTEBOOKS = [
    path.relative_to(NBS) for path in sorted(NBS.rglob("[!_.]*.ipynb")) if ".ipynb_checkpoints" not in str(path)
]
TRAIN_WHOLE_MODELS = [
    path
    for path in NOTEBOOKS
    if path.parts[0] == "tutorials"
    or str(path) in ("86_tasks/01_coffee.ipynb", "86_tasks/02_fermentation.ipynb", "86_tasks/07_demo.ipynb")
]
# A quick one of each package, for `make test-fast`; whoever works on another one runs its cells with nbdev_test.
QUICK = (
    "00_system/02_units",
    "00_system/04_platforms/03_platform",
    "05_config/01_schema",
    "25_checkpoint/01_store",
    "15_distributed/01_hang_detector",
    "10_data/00_batch_forms",
    "88_kaggle/00_offline/01_import_names",
    "20_watchdog/00_time_budget",
    "30_runs/03_history",
    "30_runs/09_trackers/00_tracker",
    "35_task/01_task",
    "35_task/09_checks/02_error_diagnosis",
    "50_train/11_parts/06_nan_guard",
    "55_jobs/00_prediction",
    "60_launch/01_request",
    "65_view/01_run_state",
    "60_api/02_check",
    "75_picker/01_fields",
    "88_kaggle/02_static_analysis",
    "65_view/07_html",
    "94_cli/00_parsing",
)
NOTEBOOKS.sort(key=lambda path: path not in TRAIN_WHOLE_MODELS)  # the longest first


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "notebook",
    [
        pytest.param(path, marks=[pytest.mark.slow] * (str(path.with_suffix("")) not in QUICK), id=str(path))
        for path in NOTEBOOKS
    ],
)
def test_the_cells_of(notebook, request):
    slow = [] if "not slow" not in request.config.option.markexpr else ["slow"]
    left_out = [*(flag for flag in get_config(NBS).tst_flags.split() if flag != "slow"), *slow]
    with fork_server.start_cells([str(NBS / notebook), *left_out], NBS, clean_environ()) as process:
        try:
            out, err = process.communicate()
        except BaseException:
            process.kill()
            raise
    assert process.returncode == 0, f"{out}\n{err}"
