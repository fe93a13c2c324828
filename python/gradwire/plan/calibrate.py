# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Measures what the model needs on this machine, with gradwire-bench."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import check, machine, model
from .calibration import Calibration, Curve, HookCurves
from .machine import Bench, Skipped, joined
from .units import PlanError, rate_text

HOOKS = ("allreduce", "bf16_compress", "int8", "int4", "one_bit", "power_sgd:rank=4")
SIZES = (64 << 10, 256 << 10, 1 << 20, 4 << 20, 12 << 20, 25 << 20)
COLLECTIVES = ("reduce", "broadcast", "reduce_scatter", "all_gather")
MOST_RANKS = 8  # on this host
SHARING_RATE = 5e8
SHARING_SIZES = (1 << 20, 4 << 20, 8 << 20)
MOST_SHARING = 1.5  # more than that was noise

Line = Mapping[str, Any]


@dataclass(frozen=True)
class Wanted:
    hooks: Sequence[str] = HOOKS
    sizes: Sequence[int] = SIZES
    hosts: int = 4  # worlds of 2 to this many hosts
    rounds: int = 3


def rising(points: Iterable[tuple[int, float]]) -> Curve:
    """Times: a larger bucket that seemed faster was noise."""
    curve = Curve.of(points)
    values: list[float] = []
    for value in curve.values:
        values.append(max(value, values[-1] if values else 0.0))
    return Curve(curve.sizes, tuple(values))


def curves_of(lines: Iterable[Line], names: Sequence[str]) -> dict[str, HookCurves]:
    """By the names that were asked for: gradwire-bench adds options to some. Its lines are in their order."""
    by_size: dict[int, list[Line]] = {}
    for line in lines:
        by_size.setdefault(line["bytes"], []).append(line)
    made = {}
    for index, name in enumerate(names):
        own = {size: listed[index] for size, listed in by_size.items()}
        counted = all("wire_bytes" in line for line in own.values())
        cut = any(line["pieces"] is not None for line in own.values())
        made[name] = HookCurves(
            rising((size, line["slowest_us"] * 1e-6) for size, line in own.items()),
            Curve.of((size, float(line["sent_bytes"])) for size, line in own.items()),
            Curve.of((size, line["wire_bytes"] / line["hosts"]) for size, line in own.items()) if counted else None,
            Curve.of((size, float(line["pieces"])) for size, line in own.items()) if cut else None,
        )
    return made


def measure_between(bench: Bench, wanted: Wanted, hosts: int, ordinary: Sequence[str]) -> tuple[str, list[Line]]:
    """(engine, lines): between network namespaces where this user may make some, else over the loopback interface."""
    try:
        command = ("network", "--rate", "none", "--backend", "hybrid", "--hosts", str(hosts), *ordinary)
        return "hybrid between network namespaces", bench.lines(*command)
    except Skipped:
        pass
    refused = None
    for backend in ("ucx", "gloo"):
        try:
            lines = bench.lines("hooks", "--backend", backend, "--world", str(hosts), *ordinary)
            return f"{backend} over the loopback interface", lines
        except PlanError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def measure_collectives(bench: Bench, wanted: Wanted, ranks: int) -> dict[str, Curve]:
    parts = 4 * ranks  # a collective divides float32 among the ranks
    sizes = sorted({max(parts, size // parts * parts) for size in wanted.sizes})
    lines = bench.lines(
        "collectives", "--backend", "shm", "--world", str(ranks), "--collective", joined(COLLECTIVES), "--bytes",
        joined(sizes), "--rounds", str(wanted.rounds),
    )  # fmt: skip
    return {
        name: rising((line["bytes"], line["median_us"] * 1e-6) for line in lines if line["collective"] == name)
        for name in COLLECTIVES
    }


def measure_sharing(bench: Bench, wanted: Wanted, known: Calibration) -> dict[int, Curve]:
    """By hosts: how far the link is busy for longer than `known` predicts, with the plain hook. Throws Skipped."""
    measured = {}
    plain = model.PLAIN
    for hosts in range(3, wanted.hosts + 1) if plain in known.hooks() else ():
        lines = bench.lines(
            "network", "--rate", rate_text(SHARING_RATE), "--backend", "hybrid", "--hosts", str(hosts), "--hook", plain,
            "--bytes", joined(SHARING_SIZES), "--rounds", str(wanted.rounds),
        )  # fmt: skip
        points = []
        for line in lines:
            predicted = check.predict(known, plain, line["bytes"], hosts, SHARING_RATE)
            longer = (line["slowest_us"] * 1e-6 - predicted.seconds) / predicted.link
            points.append((int(line["sent_bytes"]), min(MOST_SHARING, max(1.0, 1 + longer))))
        measured[hosts] = Curve.of(points)
    return measured


def calibrate(bench: Bench, wanted: Wanted, say: Callable[[str], None]) -> Calibration:
    """Takes a minute or two. `say` gets what is measured now. Throws PlanError."""
    if wanted.hosts < 2:
        raise PlanError(f"--hosts {wanted.hosts}: at least 2 hosts are needed for an exchange between hosts")
    if machine.cores() < 2:
        raise PlanError("this machine has one core; two ranks that share it say nothing about hosts with their own")
    ordinary = ("--hook", joined(wanted.hooks), "--bytes", joined(wanted.sizes), "--rounds", str(wanted.rounds))
    most = min(MOST_RANKS, machine.cores())
    within, between, collectives = {}, {}, {}
    for ranks in range(1, most + 1):
        say(f"hooks within a host, {ranks} of up to {most} ranks")
        lines = bench.lines("hooks", "--backend", "shm", "--world", str(ranks), *ordinary)
        within[ranks] = curves_of(lines, wanted.hooks)
    for ranks in range(2, most + 1):
        say(f"collectives within a host, {ranks} of up to {most} ranks")
        collectives[ranks] = measure_collectives(bench, wanted, ranks)
    engine = ""
    for hosts in range(2, wanted.hosts + 1):
        say(f"hooks between hosts, {hosts} of up to {wanted.hosts}")
        engine, lines = measure_between(bench, wanted, hosts, ordinary)
        between[hosts] = curves_of(lines, wanted.hooks)
    say("copies in memory")
    lines = bench.lines("codecs", "--codec", "fp16", "--bytes", joined(wanted.sizes), "--rounds", "1")  # it matters little
    copy = rising((line["bytes"], line["memcpy_us"] * 1e-6) for line in lines if line["direction"] == "encode")
    measured = Calibration(
        machine.version(), machine.processor(), machine.cores(), datetime.date.today().isoformat(), engine, within, between,
        collectives, copy, {},
    )  # fmt: skip
    say("several hosts that send to one")
    try:
        return dataclasses.replace(measured, sharing=measure_sharing(bench, wanted, measured))
    except Skipped:
        return measured
