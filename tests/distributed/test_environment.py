"""The environment of processes that train together: what was exported, what was asked for, and the defaults."""

from dataclasses import replace

import pytest

from spectrakit.config.compose import compose
from spectrakit.distributed.topology import NCCL_DEFAULTS, plan_processes, process_environ, rank_of
from spectrakit.system.errors import RequestError
from spectrakit.system.platforms.detect import detect


def test_what_was_exported_is_never_overwritten():
    config = compose("+distributed.env.NCCL_DEBUG=INFO", "+distributed.env.NCCL_P2P_DISABLE=1")
    exported = {"NCCL_DEBUG": "TRACE", "CUDA_LAUNCH_BLOCKING": "1"}
    made = process_environ(config, exported)
    assert made == {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "TORCH_DISTRIBUTED_DEBUG": "OFF",
        "NCCL_P2P_DISABLE": "1",
    }
    assert not made.keys() & exported.keys()


def test_what_was_asked_for_beats_the_defaults():
    assert process_environ(compose(), {}) == NCCL_DEFAULTS
    made = process_environ(compose("+distributed.env.NCCL_DEBUG=INFO"), {})
    assert made == {**NCCL_DEFAULTS, "NCCL_DEBUG": "INFO"}


def test_old_names_mean_the_new_ones():
    made = process_environ(compose("+distributed.env.NCCL_ASYNC_ERROR_HANDLING=0"), {})
    assert made["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0" and "NCCL_ASYNC_ERROR_HANDLING" not in made
    made = process_environ(compose("+distributed.env.TORCH_NCCL_BLOCKING_WAIT=0"), {"NCCL_BLOCKING_WAIT": "1"})
    assert made["TORCH_NCCL_BLOCKING_WAIT"] == "1"  # an export counts, by its old name too


@pytest.mark.parametrize(("value", "text"), [("true", "1"), ("false", "0"), ("null", ""), ("7", "7"), ("eth0", "eth0")])
def test_values_become_the_text_that_nccl_reads(value, text):
    assert process_environ(compose(f"+distributed.env.NCCL_X={value}"), {})["NCCL_X"] == text


PLACE = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def test_a_launchers_place_is_taken():
    place = rank_of({**PLACE, "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"})
    assert (place.rank, place.local_rank, place.world_size, place.local_world_size) == (3, 1, 4, 2)
    assert rank_of({**PLACE, "RANK": "0", "WORLD_SIZE": "1"}) is None
    assert rank_of({"RANK": "0", "WORLD_SIZE": "2"}) is None


@pytest.mark.parametrize("rank", ["4", "-1", "x"])
def test_a_place_that_cannot_be_is_refused(rank):
    with pytest.raises(RequestError, match="not a valid rank"):
        rank_of({**PLACE, "RANK": rank, "WORLD_SIZE": "4"})


# how many processes

NO_FALLBACK = "distributed.fallback=false"


def planned(*words: str, cores: int = 4) -> tuple[int, bool]:
    "The processes on a machine with no GPU and `cores` cores, and whether they are fewer than asked for."
    machine = replace(detect({"PATH": ""}, shell=""), gpus=(), cores=cores)
    made = plan_processes(compose(*words), machine)
    return made.world_size, made.fallback


def test_more_processes_than_there_is_room_for_become_what_divides_them():
    assert planned() == (1, False)
    assert planned("trainer.devices=4") == (4, False)
    assert planned("trainer.devices=6") == (3, True)
    assert planned("trainer.devices=4", "distributed.enabled=false") == (1, False)
    assert planned("trainer.devices=4", "launch.mode=inline") == (1, True)


def test_fewer_processes_are_refused_where_that_was_asked_for():
    with pytest.raises(RequestError, match=r"distributed\.fallback=false, and 6 processes are not possible"):
        planned("trainer.devices=6", "distributed.fallback=false")


@pytest.mark.parametrize(
    "words", [("trainer=ddp",), ("trainer.num_nodes=2",), ("trainer=ddp", "distributed.node_rank=0")]
)
def test_machines_that_cannot_meet_are_refused_with_the_words_for_each(words):
    for more in ((), ("distributed.fallback=false",)):
        with pytest.raises(RequestError, match="2 machines are requested without an address to meet at") as caught:
            planned(*words, *more)
        for rank in (0, 1):
            assert f"distributed.node_rank={rank} distributed.rdzv_endpoint=HOST:29500" in str(caught.value)
    made = planned("trainer.num_nodes=2", "trainer.devices=1", "distributed.fallback=true")
    assert made == (2, True)  # asked for: what two machines would do, on this one
    met = ("distributed.node_rank=0", "distributed.rdzv_endpoint=a:1")
    assert planned("trainer.num_nodes=2", "trainer.devices=1", *met) == (2, False)


@pytest.mark.parametrize(
    "words", [("distributed.enabled=true",), ("trainer.devices=6",), ("trainer.devices=6", NO_FALLBACK)]
)
def test_a_gpu_that_is_not_there_is_one_sentence_and_no_plan_for_the_cpu(words):
    with pytest.raises(RequestError) as caught:
        planned(*words, "trainer.accelerator=gpu")
    said = str(caught.value)
    assert (
        said.startswith("trainer.accelerator=gpu is not possible: this machine has no GPU.") and "fallback" not in said
    )


def test_several_processes_without_a_number_or_a_gpu_are_told_how_to_say_it():
    machine = replace(detect({"PATH": ""}, shell=""), gpus=(), cores=4)
    reason = plan_processes(compose("distributed.enabled=true"), machine).reason
    assert "distributed.enabled=true requests several" in reason and "write trainer.devices=2" in reason
