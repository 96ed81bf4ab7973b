"What losses log is in the live view and in the curves, beside the metric of the same name."

from spectrakit.view.figures import figures
from spectrakit.view.panels import plots
from spectrakit.view.picture import plot_curves
from spectrakit.view.run_state import MOST_METRICS, RunState, apply_event


def events_of(valid: bool = True) -> list[dict]:
    "A run of four log points that logs a mae, and with `valid` two evaluations of it."
    found = [{"t": 0.0, "type": "start", "schema": 1, "monitor": "val_loss", "total_steps": 4}]
    for step in range(1, 5):
        logged = {"train_mae": 1 / step, "train_name": "no number"}
        found.append({"t": step, "type": "step", "step": step, "epoch": 0.1, "loss": 1.0, "lr": 0.1, **logged})
        if valid and step % 2 == 0:
            metrics = {"val_loss": 1.0, "val_mae": 2 / step}
            found.append({"t": step, "type": "eval", "step": step, "epoch": 0.1, "metrics": metrics, "best": True})
    return found


def state_of(events: list[dict]) -> RunState:
    state = RunState()
    for event in events:
        apply_event(state, event)
    return state


def test_the_live_view_shows_what_losses_log():
    with_valid, alone = state_of(events_of()), state_of(events_of(valid=False))
    assert "train_mae 0.25" in figures(with_valid) and "train_mae" not in figures(with_valid, line=True)
    assert ">val_mae</b>" in plots(with_valid) and "> train</span>" in plots(with_valid)
    assert ">train_mae</b>" in plots(alone)
    many = {"t": 5.0, "type": "step", "step": 5, **{f"train_{i}": 1.0 for i in range(99)}}
    apply_event(alone, many)
    assert len(alone.logged) == MOST_METRICS  # a view stays small
    apply_event(alone, {"t": 6.0, "type": "restart", "step": 2})
    assert alone.logged["train_mae"].last == 0.5


def test_the_curves_show_what_losses_log():
    both, alone = (plot_curves(events_of(valid)) for valid in (True, False))
    panel = {p.title: p for p in both.panels}["val_mae"]
    assert [line.label for line in panel.lines] == ["train", "valid"]
    assert list(panel.lines[0].y) == [1.0, 1 / 2, 1 / 3, 1 / 4]
    assert [p.title for p in alone.panels][1:3] == ["train_mae", "learning rate"]  # and no panel of a text
    plain = [{k: v for k, v in e.items() if not k.startswith("train_")} for e in events_of()]
    assert [line.label for p in plot_curves(plain).panels if p.title == "val_mae" for line in p.lines] == ["valid"]
    assert [ax.get_title(loc="left") for ax in both.figure.axes][1] == "val_mae"
