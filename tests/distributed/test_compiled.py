"A compiled model on two ranks exchanges its gradients once a step."

import pytest
import torch
import torch.distributed as dist
from test_fsdp import on_ranks  # noqa: F401  a fixture
from torch import nn

from spectrakit.distributed.context import RunContext

pytestmark = pytest.mark.slow  # a model is compiled


def accumulate(rank: int, backend: str) -> dict:
    "Two steps of three micro batches: how often gradients were exchanged, and what they are."
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    model, exchanges = nn.parallel.DistributedDataParallel(module), []

    def exchange_once(state, bucket):
        exchanges.append(bucket.index())
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0] / 2)

    model.register_comm_hook(None, exchange_once)
    compiled = torch.compile(model, backend=backend)
    context = RunContext(None, "no", {}, rank, 2, rank, "ddp", "gloo")
    assert context.unwrap(compiled) is module and context.plain(compiled) is module
    exchange = context.gradient_sync(compiled)
    x = torch.arange(36.0).reshape(2, 6, 3) / 36
    for piece in range(6):
        exchange(piece % 3 == 2)
        compiled(x[rank, piece : piece + 1]).square().mean().backward()
    return {"exchanges": len(exchanges), "grads": [q.grad for q in module.parameters()]}


def test_a_compiled_model_exchanges_gradients_once_a_step(on_ranks):  # noqa: F811  that fixture
    one, other = on_ranks(accumulate, "aot_eager")
    assert one["exchanges"] == other["exchanges"] == 2
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    x = torch.arange(36.0).reshape(12, 3) / 36
    (module(x).square().mean() * 6).backward()  # six micro batches a rank, and the mean over ranks
    for here, there, whole in zip(one["grads"], other["grads"], module.parameters(), strict=True):
        assert torch.equal(here, there)
        torch.testing.assert_close(here, whole.grad)
