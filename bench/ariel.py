"""Measure the Ariel example: `python bench/ariel.py ladder` and `python bench/ariel.py speed`.

`ladder` scores the rungs on held-out simulated planets of three seeds, with paired bootstrap intervals; raw frames are
simulated and calibrated in memory. `speed` compares the calibration at full frame size with plain NumPy. Scores on
simulated planets say nothing about a leaderboard.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # rates are per core

import numpy as np

import spectrakit as sk
from spectrakit.tasks.ariel.calibration import Adc, Steps, calibrate, calibrate_plainly
from spectrakit.tasks.ariel.estimates import Estimate, box_estimate, physics_estimate
from spectrakit.tasks.ariel.ladder import (
    as_measured,
    flat,
    paired_interval,
    planet_scores,
    predict_rung,
    scaled,
    shaped,
)
from spectrakit.tasks.ariel.layout import AIRS, FGS1, HOURS, SENSORS
from spectrakit.tasks.ariel.light_curves import Extraction, LightCurves, channels_of
from spectrakit.tasks.ariel.network import DepthNetwork, corrected
from spectrakit.tasks.ariel.simulate import GAIN, OFFSET, Instrument, draw_detector, draw_planet, draw_visit

BINS = 48
SMALL = Instrument(pairs=(BINS, 12 * BINS))


def light_of(frames, detectors, steps=None, how=None):
    "Light curves from raw frames in memory."
    light = []
    for sensor in SENSORS:
        raw = frames[sensor.name]
        pixels = np.ascontiguousarray(raw.reshape(len(raw), -1).T)
        steps, adc_of = steps or Steps(), Adc(GAIN, OFFSET)
        part = calibrate(lambda a, b, p=pixels: p[a:b], detectors[sensor.name], sensor, steps, adc_of, (len(raw), BINS))
        light.append(channels_of(part.binned, sensor, how or Extraction()))
    hours = (np.arange(BINS) + 0.5) * HOURS / BINS
    return LightCurves("", (np.concatenate(light, axis=1),), (np.array([hours, hours]),))


def measure_planet(seed, switches, number):
    "Label, box and physical estimate of one planet: (depth, [box, physics])."
    planet = draw_planet(np.random.default_rng([seed, number]))
    visit = draw_visit(planet, SMALL, seed * 100_003 + number)
    curves = light_of(visit.frames, visit.detectors, *switches)
    return planet.depth, box_estimate(curves), physics_estimate(curves, planet.orbit)


def measured_planets(seed, count, switches=(None, None)):
    "Labels [planets, 283], boxes and physical estimates of `count` planets."
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        rows = list(pool.map(partial(measure_planet, seed, switches), range(count), chunksize=5))
    y = np.array([row[0] for row in rows])
    return y, *({str(i): row[k] for i, row in enumerate(rows)} for k in (1, 2))


def rung_scores(y, boxes: dict[str, Estimate], fits: dict[str, Estimate], train: int, network=False):
    """Scores of the held-out planets for each rung.

    A learned shape comes after the physical fit: below it, errors of the white depth hide the shape.
    """
    names = list(boxes)
    naive = (float(y[:train].mean()), float(y[:train].std()))
    box, fit = (as_measured(found, names) for found in (boxes, fits))
    rows = np.arange(len(y))
    kinds = {"constant": (None, box), "flat": (flat, box), "scaled": (scaled, box), "physics": (scaled, fit)}
    kinds["shaped"] = (shaped, fit)
    given = {
        name: predict_rung(rung, m.of(rows < train), y[:train], m.of(rows >= train))
        for name, (rung, m) in kinds.items()
    }
    if network:
        given["network"] = with_network(
            fit.of((rows < train) & fit.good), y[(rows < train) & fit.good], fit.of(rows >= train)
        )
    return {name: planet_scores(y[train:], each, naive) for name, each in given.items()}


def with_network(train, y, test):
    "The physical fit with a learned shape, corrected by the network."
    task = DepthNetwork(train, y, test)
    with tempfile.TemporaryDirectory() as folder:
        run = sk.fit(task, "launch.mode=inline", f"run.dir={folder}", show=False).raise_for_status()
        return corrected(train, y, test, sk.predict(task, run).values)


def ladder(train, test, seeds):
    "Print and return the table of the rungs."
    scores = {}
    for seed in seeds:
        began = time.perf_counter()
        y, boxes, fits = measured_planets(seed, train + test)
        print(f"seed {seed}: {train + test} planets in {time.perf_counter() - began:.0f} s", flush=True)
        for name, values in rung_scores(y, boxes, fits, train, network=True).items():
            scores.setdefault(name, []).append(values)
    table, last = {}, None
    for name, parts in scores.items():
        row = {"score": [round(float(part.mean()), 4) for part in parts]}
        if last is not None:
            low, high = paired_interval(np.concatenate(parts), np.concatenate(scores[last]))
            row["gain"] = [round(low, 4), round(high, 4)]
        table[name], last = row, name
        print(f"{name:10}", row, flush=True)
    return table


SWITCHES = {
    "defaults": (Steps(), Extraction()),
    "no clip": (Steps(clip=0), Extraction()),
    "hot pixels masked": (Steps(mask_hot=True), Extraction()),
    "no linearity": (Steps(linearity=False), Extraction()),
    "dark before linearity": (Steps(dark_first=True), Extraction()),
    "dark since reset": (Steps(dark="reset"), Extraction()),
    "no dark": (Steps(dark="none"), Extraction()),
    "offset inverted": (Steps(offset_sign=-1), Extraction()),
    "aperture fixed": (Steps(), Extraction(centre=False)),
    "background kept": (Steps(), Extraction(background=False)),
}


def ablation(train, test):
    "Score of the physical fit with a learned shape, for each switch of calibration and extraction."
    table = {}
    for name, switches in SWITCHES.items():
        y, boxes, fits = measured_planets(0, train + test, switches)
        table[name] = round(float(rung_scores(y, boxes, fits, train)["shaped"].mean()), 4)
        print(f"{name:24}", table[name], flush=True)
    return table


def full_frames(sensor):
    "Raw pixels [pixels, frames] at full size."
    rng = np.random.default_rng(0)
    raw = np.full((sensor.pixels, sensor.frames), 700, np.uint16)
    light = rng.integers(2000, 50_000, (sensor.pixels, 1))
    for a in range(0, sensor.pixels, 256):
        noise = 40 * rng.standard_normal((len(light[a : a + 256]), sensor.frames // 2), np.float32)
        raw[a : a + 256, 1::2] = light[a : a + 256] + noise
    return raw, draw_detector(rng, sensor, Instrument())


def time_one(how, name):
    "Calibrate one visit of a sensor in this process; print seconds of processor time and the peak memory."
    sensor, steps = {"AIRS-CH0": AIRS, "FGS1": FGS1}[name], Steps(clip=8.0 if how == "clipped" else 0.0)
    raw, detector = full_frames(sensor)
    if how == "plain":
        raw = np.ascontiguousarray(raw.T).reshape(sensor.frames, sensor.rows, sensor.columns)
    began = time.process_time()
    if how == "plain":
        calibrate_plainly(raw, detector, sensor, steps, Adc(GAIN, OFFSET), 187)
    else:
        calibrate(lambda a, b: raw[a:b], detector, sensor, steps, Adc(GAIN, OFFSET), (sensor.frames, 187))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"cpu_s": round(time.process_time() - began, 2), "peak_gib": round(peak, 2)}))


def speed():
    "Seconds of one core and peak memory of a visit at full size, frames in memory, each in a fresh process."
    table = {}
    for how in ("plain", "fast", "clipped"):
        for sensor in SENSORS:
            words = [sys.executable, __file__, "one", how, sensor.name]
            out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
            table[f"{how} {sensor.name}"] = json.loads(out)
            print(f"{how:8} {sensor.name:9}", out.strip(), flush=True)
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("ladder", "ablation", "speed", "one"))
    parser.add_argument("words", nargs="*")
    parser.add_argument("--train", type=int, default=80)
    parser.add_argument("--test", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON file for the table")
    args = parser.parse_args()
    if args.what == "one":
        return time_one(*args.words)
    if args.what == "ladder":
        table = ladder(args.train, args.test, range(args.seeds))
    else:
        table = ablation(args.train, args.test) if args.what == "ablation" else speed()
    if args.out:
        args.out.write_text(json.dumps({args.what: table}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
