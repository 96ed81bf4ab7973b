"NaN and infinity are found wherever they lie, and looking for them needs no copy of the data."

import pytest
import torch

from spectrakit.data import loaders, sample_hash
from spectrakit.data.loaders import find_non_finite

FORMS = {
    "flat": lambda: torch.zeros(5000),
    "rows": lambda: torch.zeros(500, 10),
    "transposed": lambda: torch.zeros(10, 500).t(),
    "channels last": lambda: torch.zeros(50, 4, 5, 5).to(memory_format=torch.channels_last),
    "one wide row": lambda: torch.zeros(1, 5000),
    "every second": lambda: torch.zeros(1000, 10)[::2],
    "most columns": lambda: torch.zeros(500, 12)[:, 1:11],
    "half": lambda: torch.full((500, 10), 60000.0, dtype=torch.float16),
    "bfloat16": lambda: torch.zeros(500, 10, dtype=torch.bfloat16),
    "double": lambda: torch.full((500, 10), 1e308, dtype=torch.float64),
    "complex": lambda: torch.zeros(500, 10, dtype=torch.complex64),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_value_is_found_in_any_block(monkeypatch, form, value):
    for module in (loaders, sample_hash):
        monkeypatch.setattr(module, "BLOCK", 64)
    for place in (0, 63, 64, 2500, 4999):
        data = FORMS[form]()
        assert find_non_finite(data) is None
        index = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), data.shape))
        data[index] = value
        assert (
            f"1 values that are not finite, first in sample {index[0]} (1 of {len(data)} samples)"
            in find_non_finite(data)
        )


def test_opposite_infinities_in_one_block_and_values_in_several_rows():
    data = torch.zeros(9, 4)
    data[2, 0], data[2, 1], data[7, 3] = float("inf"), -float("inf"), float("nan")
    assert find_non_finite((data, data.int())) == (
        "batch[0] holds 3 values that are not finite, first in sample 2 (2 of 9 samples)"
    )
    assert find_non_finite(torch.zeros(0, 3)) is None and "sample 0 (1 of 1" in find_non_finite(torch.tensor(torch.nan))


def test_a_value_between_columns_is_not_one_of_theirs():
    data = torch.zeros(500, 12)
    data[3, 0] = data[4, 11] = float("nan")
    assert find_non_finite(data[:, 1:11]) is None
    data[7, 2] = float("inf")
    assert find_non_finite(data[:, 1:11]).endswith(
        "holds 1 values that are not finite, first in sample 7 (1 of 500 samples)"
    )


@pytest.mark.parametrize(
    "form", ["rows", "transposed", "channels last", "one wide row", "every second", "most columns"]
)
def test_no_temporary_is_larger_than_a_block(monkeypatch, form):
    "Finite data are looked at in blocks: each operation's result is counted."
    from torch.utils._python_dispatch import TorchDispatchMode

    for module in (loaders, sample_hash):
        monkeypatch.setattr(module, "BLOCK", 64)
    data, made = FORMS[form](), []

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            own = torch.is_tensor(result) and result.untyped_storage().data_ptr() != data.untyped_storage().data_ptr()
            made.append(result.untyped_storage().nbytes() if own else 0)
            return result

    with Counting():
        assert find_non_finite(data) is None
    assert 0 < max(made) <= 16  # a sum and whether it is finite: no value is copied
