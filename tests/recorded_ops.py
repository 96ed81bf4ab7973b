"""A stand-in for CUDA graphs on a CPU: it records ATen calls with their tensors, and replays those calls alone.

As under a capture, no Python code of the step runs in a replay, reading a value is an error, a shape that depends on
values is an error, and a replay writes into the tensors of the recording. Recording leaves every tensor and torch's
random numbers as they were.
"""

import contextlib
from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

REFUSED = "operation not permitted when stream is capturing"


def tensors_in(values) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def storage_of(tensor) -> int:
    return tensor.untyped_storage()._cdata


def written_by(function, args, kwargs) -> list[torch.Tensor]:
    "The tensors that an operation changes in place."
    if function is torch.ops.aten.native_batch_norm.default:
        return tensors_in(args[3:5])  # its schema leaves out the running statistics
    named = zip(function._schema.arguments, args, strict=False)
    given = [(a, value) for a, value in named] + [
        (a, kwargs[a.name]) for a in function._schema.arguments if a.name in kwargs
    ]
    return [t for a, value in given if a.alias_info is not None and a.alias_info.is_write for t in tensors_in(value)]


def reads_a_value(function, args) -> bool:
    by_mask = function._overloadpacket in (torch.ops.aten.index, torch.ops.aten.index_put_) and any(
        each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1]
    )
    index = function._overloadpacket is torch.ops.aten.index
    shaped = torch.Tag.dynamic_output_shape in function.tags and not index
    return (
        by_mask
        or shaped
        or torch.Tag.data_dependent_output in function.tags
        or function is torch.ops.aten.equal.default
    )


class Tape(TorchDispatchMode):
    "The calls made within it, and what storages held before."

    def __init__(self):
        super().__init__()
        self.calls, self.made, self.before = [], {}, {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if reads_a_value(function, args):
            raise RuntimeError(REFUSED)
        written = written_by(function, args, kwargs)
        for tensor in written:
            if storage_of(tensor) not in self.made and storage_of(tensor) not in self.before:
                storage = tensor.untyped_storage()
                self.before[storage_of(tensor)] = storage, storage.clone()
        result = function(*args, **kwargs)
        outputs = tensors_in(result)
        known = {storage_of(t) for t in tensors_in((args, kwargs))}
        fresh = [t for t in outputs if storage_of(t) not in known]
        self.made.update({storage_of(t): t for t in outputs if storage_of(t) not in known})
        if written or fresh:  # a view stays one
            self.calls.append((function, args, kwargs, outputs if fresh else []))
        return result

    def undo(self):
        for storage, content in self.before.values():
            storage.copy_(content)

    def play(self):
        with torch.no_grad():
            for function, args, kwargs, outputs in self.calls:
                result = function(*args, **kwargs)
                for kept, now in zip(outputs, tensors_in(result), strict=True) if outputs else ():
                    kept.copy_(now)


class OpsRecorder:
    "Records and replays in the place of `CudaRecorder`."

    def __init__(self, device=None):
        self.replays, self.recordings = 0, 0

    @contextlib.contextmanager
    def warming_up(self):
        yield

    def record(self, function):
        drawn, tape = torch.get_rng_state(), Tape()
        try:
            with tape:
                function()
        finally:
            tape.undo()
            torch.set_rng_state(drawn)
        self.recordings += 1

        def replay():
            self.replays += 1
            tape.play()

        return replay


def on_a_gpu(context) -> SimpleNamespace:
    "What `choose_graphs` asks of a run's context, as if its device were a GPU."
    return SimpleNamespace(device=torch.device("cuda"), world_size=context.world_size)
