"The division of samples into folds: each is held out once, and nothing that is held out is trained with."

import numpy as np
import pytest

from spectrakit.config.schema import FoldsConfig
from spectrakit.data.folds import make_folds
from spectrakit.system.errors import RequestError


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


@pytest.mark.parametrize(
    ("name", "targets", "groups", "kind"),
    [
        ("ages", np.random.default_rng(0).normal(40, 12, 1000).astype(int).clip(0), None, "stratified"),
        ("years, eleven of each", np.arange(220) // 11, None, "kfold"),
        ("counts with a long tail", np.random.default_rng(1).geometric(0.06, 900), None, "kfold"),
        ("one sample of a class", np.array([0] * 60 + [1] * 39 + [2]), None, "stratified"),
        ("three samples of a word", np.array(["a"] * 60 + ["b"] * 37 + ["c"] * 3), None, "stratified"),
        ("more folds than samples of each class", np.arange(30) % 3, None, "kfold"),
        ("a rare class in groups", np.array([0] * 60 + [1] * 38 + [2] * 2), np.arange(100) // 4, "stratified_group"),
    ],
)
def test_auto_divides_whatever_it_chooses_and_says_what_it_could_not_keep(name, targets, groups, kind):
    config = FoldsConfig(count=12)
    folds = make_folds(config, 0, len(targets), targets, groups)
    assert folds.kind == kind and (folds.held >= 0).all(), name
    rare = np.unique(targets, return_counts=True)[1].min() < 12
    assert bool(folds.note) == rare, name
    if kind == "stratified":
        most = np.unique(targets)[np.unique(targets, return_counts=True)[1].argmax()]
        each = [(targets[folds.held_out(k)] == most).sum() for k in range(12)]
        assert max(each) - min(each) <= 1


def test_a_kind_that_was_asked_for_is_refused_where_it_cannot_be():
    with pytest.raises(RequestError, match="more than the 1 samples of class 2"):
        make_folds(FoldsConfig(count=5, kind="stratified"), 0, 100, np.array([0] * 60 + [1] * 39 + [2]))


@pytest.mark.parametrize("gap", [None, float("nan"), 7], ids=["None", "nan", "a number"])
@pytest.mark.parametrize("which", ["targets", "groups"])
def test_words_with_gaps_are_divided_as_any_others(gap, which):
    words = np.array([*["cat"] * 30, *["dog"] * 24, *[gap] * 6], dtype=object)
    spread = np.array([f"{word}-{i // 2}" if which == "groups" else word for i, word in enumerate(words)], dtype=object)
    if which == "groups":
        spread[-6:] = gap
    folds = make_folds(FoldsConfig(count=3), 0, 60, **{which: spread})
    assert folds.kind == {"targets": "stratified", "groups": "group"}[which]
    held = [folds.held_out(k)[folds.held_out(k) >= 54].size for k in range(3)]
    assert sorted(held) == ([2, 2, 2] if which == "targets" else [0, 0, 6])


@pytest.mark.parametrize("dtype", [np.float32, np.int64, bool])
def test_several_labels_are_spread_over_the_folds(dtype):
    labels = (np.random.default_rng(0).random((400, 6)) < (0.6, 0.3, 0.2, 0.1, 0.05, 0.01)).astype(dtype)
    folds = make_folds(FoldsConfig(kind="stratified", count=5, repeats=2), 0, 400, labels)
    assert folds.kind == "stratified" and sorted(set(folds.held[0])) == [0, 1, 2, 3, 4]
    for fold in range(folds.total):
        held = folds.held_out(fold)
        assert np.abs(labels[held].sum(0) - labels.sum(0) / 5).max() <= 2 and abs(len(held) - 80) <= 3
    assert not np.array_equal(folds.held[0], folds.held[1])
    assert folds.sha256 == make_folds(FoldsConfig(kind="stratified", count=5, repeats=2), 0, 400, labels).sha256


def test_a_rare_label_is_said_and_other_tables_of_targets_are_refused():
    labels = np.zeros((20, 2), dtype=int)
    labels[:9, 0] = labels[:2, 1] = 1
    folds = make_folds(FoldsConfig(kind="stratified", count=4), 0, 20, labels)
    assert "1 of 2 labels have fewer than 4 samples each, such as label 1" in folds.note
    for targets in (labels * 2, np.ones((20, 2)) / 2, np.zeros((20, 2, 2))):
        with pytest.raises(RequestError, match="needs one class a sample"):
            make_folds(FoldsConfig(kind="stratified", count=4), 0, 20, targets)
