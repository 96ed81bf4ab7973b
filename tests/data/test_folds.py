"The division of samples into folds: each is held out once, and nothing that is held out is trained with."

import numpy as np
import pytest

from spectrakit.config.schema import FoldsConfig
from spectrakit.data.folds import make_folds


@pytest.mark.parametrize(
    ("kind", "repeats"), [("kfold", 1), ("kfold", 3), ("stratified", 1), ("group", 1), ("stratified_group", 1)]
)
def test_each_sample_is_held_out_once_and_trained_with_in_all_other_folds(kind, repeats):
    targets, groups = np.arange(60) % 3, np.arange(60) // 4
    folds = make_folds(
        FoldsConfig(kind=kind, count=5, repeats=repeats), 0, 60, targets, groups if "group" in kind else None
    )
    assert folds.total == 5 * repeats
    held = np.concatenate([folds.held_out(fold) for fold in range(folds.total)])
    assert sorted(held) == sorted(list(range(60)) * repeats)
    for fold in range(folds.total):
        out, seen = folds.held_out(fold), folds.trained_on(fold)
        assert sorted([*out, *seen]) == list(range(60))
        if "group" in kind:
            assert not set(groups[out]) & set(groups[seen])
        if "stratified" in kind and "group" not in kind:
            assert np.bincount(targets[out]).tolist() == [4, 4, 4]


def test_of_a_time_series_only_earlier_samples_are_trained_with():
    folds = make_folds(FoldsConfig(kind="time", count=4), 0, 50)
    for fold in range(folds.total):
        out, seen = folds.held_out(fold), folds.trained_on(fold)
        assert (
            len(seen) and seen.tolist() == list(range(out.min())) and out.tolist() == list(range(out[0], out[-1] + 1))
        )


def test_another_seed_divides_otherwise_and_the_same_one_does_not():
    one, same, other = (make_folds(FoldsConfig(kind="kfold", count=5), seed, 40) for seed in (0, 0, 1))
    assert one.sha256 == same.sha256 != other.sha256
