"""How soon a person who stops a run is answered: `python bench/stop.py [--rounds N] [--ranks N] [--json FILE]`.

In a Jupyter kernel a run trains over and over. In turn ■ interrupts it, as Jupyter does, and its Stop button is
clicked through a subshell, as JupyterLab does, each in the middle of the run. Measured from there: seconds until the
cell shows "stopping", and until it is done, with the model saved. Aim: "stopping" within half a second.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

AIM_S = 0.5
TRAIN = "run = fit(Tiny({{'slow': True}}), config('{name}', 'trainer.devices={ranks}', 'trainer.max_epochs=5000'))"
WAYS = ("■", "Stop")


def once(notebook, subshell: str, way: str, name: str, ranks: int) -> tuple[float, float]:
    "Seconds from the stop until the cell says it, and until it is done."
    cell = notebook.send(TRAIN.format(name=name, ranks=ranks))
    notebook.until(lambda: any("<polyline" in text for _, text in cell.frames), "curves", 240)
    before, pressed = len(cell.frames), time.monotonic()
    if way == "■":
        notebook.interrupt("group")
    else:
        notebook.click("Stop", subshell)

    def said() -> bool:
        return any("display" in kind and "stopping: saving" in text for kind, text in cell.frames[before:])

    notebook.until(said, "an answer", 60)
    answered = time.monotonic()
    notebook.wait(cell, 120)
    assert notebook.ask("run.status") == "interrupted"
    return answered - pressed, time.monotonic() - pressed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="stops of each kind")
    parser.add_argument("--ranks", type=int, default=2, help="processes that train")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    words = parser.parse_args()
    from kernels import BEGIN, Notebook

    found = {way: {"said_s": [], "done_s": []} for way in WAYS}
    with tempfile.TemporaryDirectory() as folder, Notebook(sys.executable, Path(folder)) as notebook:
        notebook.run(BEGIN)
        subshell = notebook.open_subshell()
        for number in range(words.rounds):
            for way in WAYS:
                said_s, done_s = once(notebook, subshell, way, f"run{number}", words.ranks)
                found[way]["said_s"].append(said_s)
                found[way]["done_s"].append(done_s)
    print(f"{'':8}{'says it':>12}{'slowest':>12}{'is done':>12}   aim: says it within {AIM_S} s")
    for way, times in found.items():
        said, done = statistics.median(times["said_s"]), statistics.median(times["done_s"])
        print(f"{way:8}{said:10.2f} s{max(times['said_s']):10.2f} s{done:10.2f} s")
    if words.json:
        words.json.parent.mkdir(parents=True, exist_ok=True)
        words.json.write_text(json.dumps({"ranks": words.ranks, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
