# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Measures exchanges between network namespaces whose links have a rate, and compares the predictions with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .calibration import Calibration
from .machine import Bench, joined
from .model import HEADERS, Exchange, Link, Place, exchange
from .units import rate_text

BURST = 256 << 10  # of the links that gradwire-bench makes (bench/network_hosts.cc)


@dataclass(frozen=True)
class Grid:
    hosts: Sequence[int] = (2, 3, 4)
    rates: Sequence[float] = (1e8, 3e8, 1e9)
    hooks: Sequence[str] = ()
    sizes: Sequence[int] = (256 << 10, 1 << 20, 4 << 20, 25 << 20)
    longest: float = 0.4  # seconds of the link for a plain bucket; a combination above is left out, to keep the run short
    rounds: int = 2


@dataclass(frozen=True)
class Compared:
    hosts: int
    rate: float
    hook: str
    bytes: int
    predicted: Exchange
    measured: float  # seconds

    def error(self) -> float:
        """Of the prediction, as a part of what was measured."""
        return self.predicted.seconds / self.measured - 1


def combinations(grid: Grid) -> Iterator[tuple[int, float, list[int]]]:
    """(hosts, rate, sizes) of each run of gradwire-bench."""
    for rate in grid.rates:
        for hosts in grid.hosts:
            sizes = [size for size in grid.sizes if 16 * size * (hosts - 1) / hosts / rate <= grid.longest]
            if sizes:
                yield hosts, rate, sizes


def predict(calibration: Calibration, hook: str, size: int, hosts: int, rate: float) -> Exchange:
    """For ranks of this machine, one after the other bucket: what lies between two buckets is a copy of the bucket."""
    link = Link(rate, frame=HEADERS, burst=BURST)
    return exchange(calibration, hook, size, Place(hosts, one_machine=True), link, pause=calibration.copy.at(size))


def check(bench: Bench, calibration: Calibration, grid: Grid, say: Callable[[str], None]) -> list[Compared]:
    """Throws machine.Skipped where no namespaces may be made, and PlanError."""
    hooks = list(grid.hooks) or calibration.hooks()
    for hook in hooks:
        calibration.require_hook(hook)
    compared = []
    runs = list(combinations(grid))
    for number, (hosts, rate, sizes) in enumerate(runs, 1):
        say(f"{hosts} hosts at {rate_text(rate)}, run {number} of {len(runs)}")
        lines = bench.lines(
            "network", "--rate", rate_text(rate), "--backend", "hybrid", "--hosts", str(hosts), "--hook", joined(hooks),
            "--bytes", joined(sizes), "--rounds", str(grid.rounds),
        )  # fmt: skip
        for number_of_line, line in enumerate(lines):
            hook = hooks[number_of_line % len(hooks)]
            predicted = predict(calibration, hook, line["bytes"], hosts, rate)
            compared.append(Compared(hosts, rate, hook, line["bytes"], predicted, line["slowest_us"] * 1e-6))
    return compared


def percentile(values: Sequence[float], part: float) -> float:
    """The value that `part` of all values do not exceed, with straight lines between neighbours."""
    ordered = sorted(values)
    position = part * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])
