"The task for pictures: forms of competitions and answers, damaged and odd files, the cache, a timm model, folds."

import json
import sys
import types
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from torch import nn

import helpers
import spectrakit as sk
from spectrakit.config.compose import compose, with_profile
from spectrakit.system.errors import RequestError
from spectrakit.tasks.images import pixels
from spectrakit.tasks.images.images import Images
from spectrakit.tasks.images.net import PictureNet, small_net
from spectrakit.tasks.images.pixels import Form, cached, read_picture

PIL = pytest.importorskip("PIL.Image", reason="the extra `images` is not installed")
ROWS, TESTS = 24, 6
KINDS = ("cat", "dog", "hen")


@pytest.fixture(autouse=True)
def _own_state(tmp_path, monkeypatch):
    "The cache of pictures lies in the test's folder."
    monkeypatch.setenv("SPECTRAKIT_STATE", str(tmp_path / "state"))


def picture(path, shade, mode="RGB", size=(14, 12)):
    "Write a picture of noise around a shade; each differs."
    rng = np.random.default_rng(int.from_bytes(path.stem.encode()[-4:]))
    values = np.clip(rng.normal(shade, 12, (size[1], size[0])), 0, 255).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.fromarray(values).convert(mode).save(path)


def competition(folder, sample=None, mode="RGB", **columns):
    "Pictures in train/ and test/, train.csv with these columns or the kind, and a sample submission."
    for i in range(ROWS + TESTS):
        picture(folder / ("train" if i < ROWS else "test") / f"{i:03}.png", 40 + 80 * (i % 3), mode)
    table = {"id": [f"{i:03}" for i in range(ROWS)], **(columns or {"kind": [KINDS[i % 3] for i in range(ROWS)]})}
    pandas.DataFrame(table).to_csv(folder / "train.csv", index=False)
    asked = sample or {"kind": "cat"}
    ids = [f"{i:03}" for i in range(ROWS, ROWS + TESTS)]
    pandas.DataFrame({"id": ids, **asked}).to_csv(folder / "sample_submission.csv", index=False)
    return folder


def setting(folder, *words):
    return compose("task.name=images", f"task.data={folder}", "task.width=4", *words)


def answered(folder, *words):
    "The submission of an untrained network, its predictions, and the task."
    task, cfg = Images(), setting(folder, *words)
    train, valid = task.datasets(cfg)
    model, x, y = task.model(cfg), *(torch.stack(part) for part in zip(*(train[i] for i in range(4)), strict=True))
    assert task.loss(model.train(), (x, y)).isfinite() and len(valid) + len(train) <= ROWS
    test = task.test_dataset(cfg)
    with torch.no_grad():
        batch = (torch.stack([test[i][0] for i in range(len(test))]),)
        predictions = torch.stack([task.predict(model.eval(), view) for view in task.views(batch)]).mean(0)
    assert set(task.metrics_all(predictions[:4], y)) >= {"error"}
    return task.submission(predictions.numpy()), predictions.numpy(), task


def notes_of(folder, *words):
    return [line for line in Images().describe(setting(folder, *words)).splitlines() if line.startswith("note")]


# --- forms of competitions and answers --------------------------------------------------------------------------------


FORMS = {
    "label": ({}, {"kind": "cat"}),
    "a probability for each class": ({}, dict.fromkeys(KINDS, 1 / 3)),
    "a probability": ({"dog": [i % 2 for i in range(ROWS)]}, {"dog": 0.5}),
    "numbers": ({"age": [i + 0.5 for i in range(ROWS)]}, {"age": 0.0}),
    "several labels": (
        {"big": [i % 2 for i in range(ROWS)], "red": [i % 3 // 2 for i in range(ROWS)]},
        {"big": 0.5, "red": 0.5},
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_answer_is_written_as_the_sample_asks(tmp_path, form):
    columns, sample = FORMS[form]
    table, predictions, _ = answered(competition(tmp_path, sample, **columns))
    assert list(table.columns) == ["id", *sample] and list(table["id"]) == [
        f"{i:03}" for i in range(ROWS, ROWS + TESTS)
    ]
    values = table.drop(columns="id").to_numpy()
    if form == "label":
        assert set(values[:, 0]) <= set(KINDS)
    else:
        assert np.allclose(values, predictions[:, 1:] if form == "a probability" else predictions)


def test_numbers_begin_at_their_mean(tmp_path):
    columns, sample = FORMS["numbers"]
    _, predictions, task = answered(competition(tmp_path, sample, **columns))
    assert 5 < task.now.prior[0] < 19 and abs(predictions.mean() - task.now.prior[0]) < 2 * task.now.spread[0]


def test_a_folder_for_each_class_is_read_and_pictures_below_test_are_answered_by_name(tmp_path):
    for i in range(ROWS):
        picture(tmp_path / "data" / "train" / "train" / KINDS[i % 3] / f"{i}.png", 80 * (i % 3))
    for i in range(TESTS):
        picture(tmp_path / "data" / "test" / f"t{i}.png", 80)
    (tmp_path / "data" / "train" / "train" / "owl").mkdir()
    table, _, task = answered(tmp_path / "data")
    assert task.now.question.classes == sorted(KINDS) and list(table["file"]) == [f"t{i}.png" for i in range(TESTS)]
    assert list(table.columns) == ["file", "class"]
    assert any("'owl'" in note for note in notes_of(tmp_path / "data"))


@pytest.mark.slow
def test_the_command_trains_and_answers(tmp_path):
    competition(tmp_path / "data")
    words = (
        f"task.data={tmp_path / 'data'}",
        "task.width=8",
        "data.micro_batch_size=8",
        "trainer.max_epochs=2",
        "launch.mode=inline",
    )
    done = helpers.run_cli(tmp_path, "train", "images", *words, "--predict", "submission.csv")
    assert done.returncode == 0, done.stderr
    table = pandas.read_csv(tmp_path / "submission.csv", dtype=str)
    assert list(table["kind"]) == [KINDS[i % 3] for i in range(ROWS, ROWS + TESTS)]
    assert "pictures  24 to learn from" in done.stdout + done.stderr


@pytest.mark.slow
def test_folds_are_the_tasks_own_and_their_mean_is_handed_in(tmp_path):
    data, out = competition(tmp_path / "data"), tmp_path / "submission.csv"
    words = (
        f"task.data={data}",
        "task.width=8",
        "data.micro_batch_size=8",
        "trainer.max_epochs=2",
        "launch.mode=inline",
        f"run.dir={tmp_path}/runs",
    )
    cv = sk.cross_validate("images", *words, folds=2, predict=out, show=False)
    assert cv.score is not None and list(pandas.read_csv(out)["kind"]) == [KINDS[i % 3] for i in range(TESTS)]


def test_the_profile_of_the_task_is_taken(tmp_path):
    cfg = with_profile(setting(tmp_path), "images", "tasks")
    assert cfg.data.micro_batch_size == 64 and cfg.checkpoint.monitor == "val_error"


# --- odd and damaged files --------------------------------------------------------------------------------------------


def test_damaged_and_missing_pictures_are_said_left_out_and_answered_with_the_mean(tmp_path):
    competition(tmp_path, dict.fromkeys(KINDS, 1 / 3))
    (tmp_path / "train" / "003.png").write_bytes(b"no picture")
    (tmp_path / "train" / "004.png").unlink()
    (tmp_path / "test" / "025.png").write_bytes((tmp_path / "test" / "026.png").read_bytes()[:70])
    (tmp_path / "test" / "027.png").unlink()
    table, predictions, task = answered(tmp_path)
    training = task.training(setting(tmp_path))
    assert len(training.rows) == ROWS - 2 and not {3, 4} & set(training.rows)
    values = table[list(KINDS)].to_numpy()
    assert np.allclose(values[[1, 3]], task.now.prior) and np.allclose(values[[0, 2, 4, 5]], predictions[[0, 2, 4, 5]])
    text = "\n".join(notes_of(tmp_path))
    assert "1 of 24 pictures to learn from are damaged:" in text and "train/003.png" in text and "'004'" in text
    assert "1 of 6 pictures to predict are damaged: 'test/025.png" in text and "1 of 6 ids have no picture" in text


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("1", 1), ("RGBA", 3), ("P", 3), ("I;16", 1), ("LA", 1)])
def test_pictures_of_each_mode_are_read(tmp_path, mode, channels):
    *_, task = answered(competition(tmp_path, mode=mode))
    assert task.now.form.channels == channels


def test_deep_transparent_and_turned_pictures_look_as_they_should(tmp_path):
    PIL.fromarray(np.array([[0, 4095], [2048, 4095]], np.uint16)).save(tmp_path / "deep.png")
    assert pixels.look([tmp_path / "deep.png"]).white == 4095
    assert read_picture(tmp_path / "deep.png", Form(2, 1, 4095.0)).tolist() == [[[0, 255], [127, 255]]]
    PIL.new("LA", (4, 4), (0, 0)).save(tmp_path / "clear.png")
    assert read_picture(tmp_path / "clear.png", Form(4, 3)).min() == 255
    turned = PIL.fromarray(np.array([[0, 255]] * 2, np.uint8))
    exif = PIL.Exif()
    exif[0x0112] = 3
    turned.save(tmp_path / "turned.png", exif=exif)
    assert read_picture(tmp_path / "turned.png", Form(2, 1)).tolist() == [[[255, 0]] * 2]


SPELLED = {
    "another ending": lambda name: f"{name}.jpg",
    "capitals": lambda name: f"É{name}.PNG",
    "another form of Unicode": lambda name: f"é{name}.png",
    "without an ending": lambda name: name,
}


@pytest.mark.parametrize("spelled", SPELLED)
def test_pictures_are_found_although_the_table_spells_them_otherwise(tmp_path, spelled):
    competition(tmp_path)
    for path in [*tmp_path.glob("t*/*.png")]:
        name = {"another ending": path.name, "without an ending": path.stem}.get(spelled, f"e\u0301{path.name}")
        path.rename(path.with_name(name))
    for table in tmp_path.glob("*.csv"):
        rows = pandas.read_csv(table, dtype=str)
        rows.assign(id=rows["id"].map(SPELLED[spelled])).to_csv(table, index=False)
    answer, predictions, _ = answered(tmp_path)
    assert answer["id"][0] == SPELLED[spelled](f"{ROWS:03}") and len(np.unique(predictions, axis=0)) == TESTS
    assert not notes_of(tmp_path)


def test_infinite_and_enormous_pictures_are_said(tmp_path):
    competition(tmp_path)
    for i, value in enumerate((np.inf, -np.inf, np.nan)):
        (tmp_path / "train" / f"{i:03}.png").unlink()
        values = np.linspace(0, 1, 168, dtype=np.float32).reshape(12, 14)
        values[0, 0] = value
        PIL.fromarray(values).save(tmp_path / "train" / f"{i:03}.tif")
    PIL.new("1", (20_000, 20_000)).save(tmp_path / "test" / f"{ROWS:03}.png")
    assert len(answered(tmp_path)[0]) == TESTS
    (note,) = (note for note in notes_of(tmp_path) if "damaged" in note)
    assert "1 of 6 pictures to predict" in note and "more than 178 million pixels: write it smaller" in note


def test_sizes_follow_the_pictures(tmp_path):
    seen = pixels.Look(np.array([[300, 200], [30, 60]]), {"L": 2}, 1.0)
    assert [seen.form(None, largest).size for largest in (128, 224)] == [128, 192] and seen.form(50, 128).size == 50


WRONG = {
    "one class": (lambda d: competition(d, kind=["cat"] * ROWS), "only one value"),
    "no picture": (lambda d: (d / "train.csv").write_text("id,kind\n1,cat\n"), "'.csv'"),
    "unknown ending": (lambda d: (d / "a.dcm").write_text("x"), "'.dcm'.*Name another folder, or convert"),
    "no labels": (lambda d: picture(d / "a.png", 9), "neither a table of labels nor folders of classes"),
    "no such names": (
        lambda d: competition(d, id=[f"x{i}" for i in range(ROWS)], kind=list("ab") * 12),
        "No column of train.csv",
    ),
    "two of a name": (lambda d: picture(competition(d) / "train" / "more" / "003.png", 9), "'003' has 2 pictures"),
    "all damaged": (
        lambda d: [p.write_bytes(b"") for p in (competition(d) / "train").iterdir()],
        "None of 24 pictures",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_learned_is_refused_in_a_sentence(tmp_path, what):
    make, words = WRONG[what]
    (tmp_path / "data").mkdir()
    make(tmp_path / "data")
    with pytest.raises(RequestError, match=words):
        Images().training(setting(tmp_path / "data"))


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("task.size=3", "an integer from 8"),
        ("task.flip=left", "task.flip=left is invalid"),
        ("task.file=name", "task.file=name is not a column of train.csv"),
        ("task.group=name", "task.group=name is not a column"),
        ("task.weights=./nothing", "task.weights|needs timm|not the name of an input"),
        ("task.augment=many", "task.augment=many is invalid"),
        ("task.dropout=1", "task.dropout=1 is invalid"),
        ("task.metric=rmse", "task.metric=rmse is not computed"),
    ],
)
def test_an_invalid_option_is_refused(tmp_path, word, said):
    with pytest.raises(RequestError, match=said):
        answered(competition(tmp_path), word)


def test_without_a_folder_test_there_is_nothing_to_predict_and_training_is_possible(tmp_path):
    for i in range(ROWS):
        picture(tmp_path / KINDS[i % 3] / f"{i}.png", 80)
    task, cfg = Images(), setting(tmp_path)
    assert task.test_dataset(cfg) is None and len(task.datasets(cfg)[0]) and "0 to predict" in task.describe(cfg)


def test_a_missing_pillow_is_named_with_the_extra(tmp_path, monkeypatch):
    competition(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(RequestError, match=r'Pillow.*pip install "spectrakit-train\[images\]"'):
        Images().training(setting(tmp_path))


# --- the cache --------------------------------------------------------------------------------------------------------


def test_pictures_are_decoded_once(tmp_path, monkeypatch):
    competition(tmp_path)
    first = Images().training(setting(tmp_path))
    monkeypatch.setattr(pixels, "read_picture", None)
    again = Images().training(setting(tmp_path, "task.fold=1"))
    assert again.cache == first.cache and first.cache.file.is_relative_to(tmp_path / "state")
    assert first.cache.array().shape == (ROWS, 1 if first.recipe.form.channels == 1 else 3, 16, 16)


def test_a_changed_picture_or_form_makes_another_cache(tmp_path):
    picture(tmp_path / "a.png", 10)
    first = cached([tmp_path / "a.png"], Form(8, 1), tmp_path)
    assert cached([tmp_path / "a.png"], Form(8, 3), tmp_path).file != first.file
    picture(tmp_path / "a.png", 200, size=(15, 15))
    assert cached([tmp_path / "a.png"], Form(8, 1), tmp_path).array().mean() > first.array().mean()


def test_a_cut_writing_leaves_no_cache(tmp_path, monkeypatch):
    picture(tmp_path / "a.png", 10)

    def stop(path, form):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pixels, "read_picture", stop)
        cached([tmp_path / "a.png"], Form(8, 1), tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.npy"))
    assert not cached([tmp_path / "a.png"], Form(8, 1), tmp_path / "cache").damaged


def test_a_cache_that_cannot_be_written_is_said(tmp_path):
    competition(tmp_path / "data")
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="task.cache=FOLDER"):
        Images().training(setting(tmp_path / "data", f"task.cache={tmp_path / 'file'}"))


# --- folds, flips, weights --------------------------------------------------------------------------------------------


def test_copies_share_a_fold(tmp_path):
    competition(tmp_path)
    for i in range(8):
        (tmp_path / "train" / f"{i + 8:03}.png").write_bytes((tmp_path / "train" / f"{i:03}.png").read_bytes())
    training = Images().training(setting(tmp_path, "task.folds=3"))
    assert (training.parts[:8] == training.parts[8:16]).all() and len(set(training.parts)) == 3
    assert any("8 pictures are copies" in note for note in training.notes)


@pytest.mark.parametrize(("mode", "flips"), [("L", "none"), ("RGB", "horizontal")])
def test_grey_signs_are_not_mirrored(tmp_path, mode, flips):
    task = Images()
    competition(tmp_path, {"sign": 0}, mode, sign=[i % 3 for i in range(ROWS)])
    if mode == "RGB":
        PIL.new("RGB", (14, 12), "red").save(tmp_path / "train" / "000.png")
    task.training(setting(tmp_path))
    assert task.now.flip == flips
    x = torch.arange(12).reshape(1, 1, 3, 4)
    assert [view[0].tolist() for view in task.views((x,))] == [x.tolist(), x.flip(3).tolist()][: 1 + (mode == "RGB")]


def test_weights_of_other_classes_are_refused(tmp_path):
    first, second = (
        competition(tmp_path / "a"),
        competition(tmp_path / "b", kind=[("cow", "ewe")[i % 2] for i in range(ROWS)]),
    )
    states = [Images().model(setting(folder)).state_dict() for folder in (first, second)]
    with pytest.raises(RuntimeError, match="classes .'cat', 'dog', 'hen'., now .'cow', 'ewe'."):
        Images().model(setting(second)).load_state_dict(states[0])


def test_the_recipe_of_a_checkpoint_is_used(tmp_path):
    data, task = competition(tmp_path), Images()
    weights = Images().model(setting(data, "task.size=32")).state_dict()
    task.restore(setting(data), weights)
    model = task.model(setting(data))
    model.load_state_dict(weights)
    assert task.now.form.size == 32 and task.test_dataset(setting(data))[0][0].shape[-1] == 32
    assert torch.equal(model.mean, weights["mean"]) and model.mean.max() > 0


class StandIn(types.ModuleType):
    "timm with one model, which notes its arguments."

    made: dict

    def create_model(self, name, **given):
        self.made = {"name": name, **given}
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(given["in_chans"], given["num_classes"]))


@pytest.mark.parametrize("words", [(), ("task.weights=resnet",)])
def test_a_timm_model_among_the_inputs_is_taken(tmp_path, monkeypatch, words):
    data, folder = competition(tmp_path / "data", mode="L"), tmp_path / "input" / "resnet" / "v1"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(
        json.dumps({"architecture": "resnet9", "pretrained_cfg": {"input_size": [3, 40, 40]}})
    )
    (folder / "model.safetensors").write_bytes(b"")
    timm = StandIn("timm")
    timm.__spec__ = types.SimpleNamespace(name="timm")
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setenv("SPECTRAKIT_INPUT", str(tmp_path / "input"))
    *_, task = answered(data, *words)
    assert task.now.architecture == "resnet9" and task.now.form == Form(40, 3, 1.0)
    assert timm.made["pretrained_cfg_overlay"] == {"file": str(folder / "model.safetensors")}
    assert timm.made["num_classes"] == 3 and timm.made["name"] == "resnet9"
    assert Images().model(setting(data, "task.weights=none")).body[0].kernel_size == (3, 3)


def test_the_network_normalizes_bytes(tmp_path):
    net = PictureNet(
        Images(competition(tmp_path)).recipe(setting(tmp_path)), small_net(Form(16, 1), 3), [100.0], [50.0]
    )
    seen = []
    net.body.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    net(torch.full((1, 1, 16, 16), 150, dtype=torch.uint8))
    assert seen[0].unique().tolist() == [1.0]


def test_paths_of_the_package_stay_relative(tmp_path):
    competition(tmp_path)
    task = Images()
    task.training(setting(tmp_path))
    assert str(tmp_path) not in task.now.text() and not Path(task.asked(setting(tmp_path))[0].files[0]).is_absolute()
