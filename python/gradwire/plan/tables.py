# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Predictions and comparisons as text, as JSON and as plots."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..report.text import binary_bytes, count_of, human_seconds
from .calibration import Calibration
from .check import Compared, percentile
from .pictures import plot_errors, plot_rates
from .step import Step
from .units import rate_text


@dataclass(frozen=True)
class Row:
    """A prediction, and what it is for."""

    hosts: int
    ranks: int
    rate: float
    hook: str
    step: Step


def origin(calibration: Calibration) -> str:
    return f"{calibration.processor}, {calibration.cores} cores, gradwire {calibration.version}, {calibration.day}"


def aligned(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns; the first and the last to the left, the others to the right."""
    lines = [list(headings), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    last = len(headings) - 1
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in (0, last) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    )


def footnotes(noted: Iterable[tuple[str, ...]]) -> dict[str, str]:
    """The letter of each note, in the order in which they come."""
    notes = dict.fromkeys(note for several in noted for note in several)
    return {note: chr(ord("a") + number) for number, note in enumerate(notes)}


def prediction_text(calibration: Calibration, rows: Sequence[Row]) -> str:
    """One table a place and rate, the fastest hook first."""
    letters = footnotes(row.step.notes for row in rows)
    parts = [f"calibrated on {origin(calibration)} ({calibration.engine})"]
    for place in dict.fromkeys((row.hosts, row.ranks, row.rate) for row in rows):
        own = sorted((row for row in rows if (row.hosts, row.ranks, row.rate) == place), key=lambda row: row.step.seconds)
        parts.append(f"\n{count_of(place[0], 'host')} with {count_of(place[1], 'rank')} each, links of {rate_text(place[2])}")
        parts.append(
            aligned(
                ("hook", "step", "computing", "link busy", "see"),
                (
                    (
                        row.hook,
                        human_seconds(row.step.seconds),
                        f"{100 * row.step.computing:.0f} %",
                        human_seconds(row.step.link),
                        " ".join(letters[note] for note in row.step.notes),
                    )
                    for row in own
                ),
            )
        )
    if letters:
        parts.append("")
        parts += [f"{letter}: {note}" for note, letter in letters.items()]
    return "\n".join(parts) + "\n"


def prediction_json(calibration: Calibration, rows: Sequence[Row]) -> str:
    return json.dumps(
        {
            "calibration": origin(calibration),
            "predictions": [
                {
                    "hosts": row.hosts,
                    "ranks_per_host": row.ranks,
                    "rate": rate_text(row.rate),
                    "hook": row.hook,
                    "step_seconds": row.step.seconds,
                    "link_seconds": row.step.link,
                    "computing": row.step.computing,
                    "notes": list(row.step.notes),
                }
                for row in rows
            ],
        },
        indent=1,
    ) + "\n"  # fmt: skip


def prediction_plot(calibration: Calibration, rows: Sequence[Row]) -> str:
    """One curve a hook, over the rates, for the place with the most hosts and ranks."""
    hosts, ranks = max((row.hosts, row.ranks) for row in rows)
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if (row.hosts, row.ranks) == (hosts, ranks):
            series.setdefault(row.hook, []).append((row.rate, row.step.seconds))
    return plot_rates(f"Predicted step, {count_of(hosts, 'host')} with {count_of(ranks, 'rank')} each", origin(calibration), series)


@dataclass(frozen=True)
class Errors:
    """Parts of what was measured."""

    count: int
    median: float
    most: float  # 95 of 100 errors are at most this

    @staticmethod
    def of(compared: Sequence[Compared]) -> Errors:
        sizes = [abs(one.error()) for one in compared]
        return Errors(len(sizes), percentile(sizes, 0.5), percentile(sizes, 0.95))

    def text(self) -> str:
        return f"{self.count} combinations, error: median {100 * self.median:.1f} %, 95th percentile {100 * self.most:.1f} %"


def check_text(calibration: Calibration, compared: Sequence[Compared]) -> str:
    letters = footnotes(one.predicted.notes for one in compared)
    table = aligned(
        ("hook", "hosts", "rate", "bytes", "predicted", "measured", "error", "see"),
        (
            (
                one.hook,
                str(one.hosts),
                rate_text(one.rate),
                binary_bytes(one.bytes),
                human_seconds(one.predicted.seconds),
                human_seconds(one.measured),
                f"{100 * one.error():+.1f} %",
                " ".join(letters[note] for note in one.predicted.notes),
            )
            for one in compared
        ),
    )
    parts = [f"calibrated on {origin(calibration)} ({calibration.engine})", "", table, ""]
    parts += [f"{letter}: {note}" for note, letter in letters.items()]
    for title, own in (
        *((f"hook {hook}", [one for one in compared if one.hook == hook]) for hook in dict.fromkeys(o.hook for o in compared)),
        ("rows without a note", [one for one in compared if not one.predicted.notes]),
        ("all", list(compared)),
    ):
        if own:
            parts.append(f"{title}: {Errors.of(own).text()}")
    return "\n".join(parts) + "\n"


def check_json(calibration: Calibration, compared: Sequence[Compared]) -> str:
    errors = Errors.of(compared)
    return json.dumps(
        {
            "calibration": origin(calibration),
            "combinations": errors.count,
            "median_error": errors.median,
            "p95_error": errors.most,
            "compared": [
                {
                    "hosts": one.hosts,
                    "rate": rate_text(one.rate),
                    "hook": one.hook,
                    "bytes": one.bytes,
                    "predicted_seconds": one.predicted.seconds,
                    "measured_seconds": one.measured,
                    "notes": list(one.predicted.notes),
                }
                for one in compared
            ],
        },
        indent=1,
    ) + "\n"  # fmt: skip


def check_plot(calibration: Calibration, compared: Sequence[Compared]) -> str:
    series: dict[str, list[tuple[float, float]]] = {}
    for one in compared:
        series.setdefault(one.hook, []).append((one.measured, one.predicted.seconds))
    return plot_errors(f"gradwire-plan: {Errors.of(compared).text()}", origin(calibration), series)
