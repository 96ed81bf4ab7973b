"""What a run on a GPU says of it: its memory, as the driver tells it, and how busy it is; and what a person reads."""

import json
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch

from spectrakit.runs.events import EventLog, read_events
from spectrakit.system.hardware import visible_gpus
from spectrakit.train.parts.logging import LogPoint, RankReport, write_log_point
from spectrakit.train.start.setup import device_gib
from spectrakit.view.run_state import RunState, apply_event
from spectrakit.view.tiles import tiles

GPU = torch.device("cuda:0")  # a name: nothing asks CUDA for it


@pytest.fixture
def known(tmp_path):
    "environment.json of a machine on which `nvidia-smi` knows two GPUs."
    command = tmp_path / "bin" / "nvidia-smi"
    command.parent.mkdir()
    lines = "Tesla P100-PCIE-16GB, 16384, 6.0, GPU-a\\nTesla T4, 15360, 7.5, GPU-b\\n"
    command.write_text(f"#!/bin/sh\nprintf '{lines}'")
    command.chmod(0o755)
    gpus, _, note = visible_gpus({"PATH": str(command.parent)}, str(tmp_path))
    assert note is None
    return json.loads(json.dumps({"platform": {"gpus": [asdict(gpu) for gpu in gpus]}}))


def test_the_memory_of_a_device_is_the_smallest_of_those_that_the_run_uses(known):
    assert device_gib(GPU, known) == 16.0 and device_gib(GPU, known, count=2) == 15.0
    assert device_gib(torch.device("cpu"), known) is None


@pytest.mark.parametrize("loads", [((14.4, 0.4),), ((14.4, 0.4), (14.1, 0.35))], ids=["one GPU", "two"])
def test_the_tiles_show_memory_of_memory_and_an_idle_gpu(known, tmp_path, loads):
    log = EventLog(tmp_path / "events.jsonl")
    log.write(
        "start", total_steps=900, micro_batch_size=64, num_workers=1, device_gib=device_gib(GPU, known, len(loads))
    )
    reports = [RankReport(0.5, gib, busy, 0.0, -1.0, 0.1, 0.0) for gib, busy in loads]
    context = SimpleNamespace(device=GPU, rank=0)
    run = SimpleNamespace(context=context, record=SimpleNamespace(log=log), parts=(), call=lambda *_: None)
    write_log_point(run, LogPoint(7, 1, 0.5, 0.1, 640.0, {}, list), {"loss": 0.5}, reports)
    log.close()
    state = RunState("on-a-gpu")
    for event in read_events(tmp_path / "events.jsonl"):
        apply_event(state, event)
    shown = {tile.name: tile for tile in tiles(state, 1.0)}
    memory, speed = shown["GPU memory"], shown["samples/s"]
    assert memory.value == ("14.4/16 GiB", "14.4/15 GiB")[len(loads) - 1]
    assert bool(memory.reason) == (len(loads) == 2)  # 96 % of a T4, 90 % of a P100
    assert speed.reason == "GPU idle 60%" and "dataloader.num_workers is 1; the default, auto, measures" in speed.remedy


def test_a_driver_that_tells_no_size_leaves_the_question_to_torch(monkeypatch):
    asked = SimpleNamespace(total_memory=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: asked)
    unified = {"platform": {"gpus": [{"name": "GB10", "memory_gib": 0.0}]}}  # its memory is the CPU's
    assert device_gib(GPU, unified) == device_gib(GPU, {}) == 80.0
