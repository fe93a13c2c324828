# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What the page says of gradwire-bench's lines."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from .charts import NARROW, WIDE, Bar, Curve, Labels, Piece, add_bars, add_curves
from .elements import Element, add, add_legend, add_table
from .run_sections import colour_of, section
from .text import binary_bytes, human_seconds
from .timings import Timing

Key = TypeVar("Key")
NOTES = {
    "all_reduce": "Time of an all-reduce on rank 0, and of peers in multiples of it.",
    "collectives": "Time of a call on rank 0, and of peers in multiples of it; bytes of the largest tensor of a call.",
    "hooks": "Time from a bucket's readiness to its result on rank 0, and of PyTorch's hook in multiples of it. "
    "Pays below: the speed of a network under which the hook beats plain all-reduce, if what the network takes for the "
    "bytes came on top.",
    "network": "Time from a bucket's readiness to its result on rank 0, between hosts, and of PyTorch's hook in "
    "multiples of it.",
    "codecs": "Time to encode or decode, also in copies of the values (memcpys), and of PyTorch's operators in "
    "multiples of it.",
    "ddp": "Time of a step of training (forward, backward and SGD), alone and, in multiples of that, with DDP.",
}
SPREAD = " Bars are medians; a line goes from the 10th to the 90th percentile, as far as the chart does."


def grouped(timings: Iterable[Timing], key: Callable[[Timing], Key]) -> dict[Key, list[Timing]]:
    groups: dict[Key, list[Timing]] = {}
    for timing in timings:
        groups.setdefault(key(timing), []).append(timing)
    return groups


def add_timing_sections(main: Element, timings: Sequence[Timing]) -> None:
    for (benchmark, setting), group in grouped(timings, lambda timing: (timing.benchmark, timing.setting)).items():
        group = told_apart(group)
        part = section(main, f"{benchmark}: {setting}", NOTES[benchmark] + (SPREAD if has_spread(group) else ""))
        series = list(dict.fromkeys(timing.series for timing in group))
        colours = {name: colour_of(number) for number, name in enumerate(series)}
        add_legend(part, [(colours[name], name) for name in series])
        subjects = grouped(group, lambda timing: timing.subject)
        many_sizes = {subject: len({timing.bytes for timing in own}) > 1 for subject, own in subjects.items()}
        if benchmark in ("all_reduce", "collectives") and any(many_sizes.values()):
            add_curves_by_size(
                part, {subject: own for subject, own in subjects.items() if many_sizes[subject]}, colours
            )
            group_of_bars = [timing for timing in group if not many_sizes[timing.subject]]
        else:
            group_of_bars = group
        for size, own in grouped(group_of_bars, lambda timing: timing.bytes).items():
            if size:
                add(part, "h3", binary_bytes(size))
            add_bars(part, list(bars_of(own, colours)))
        add_numbers(part, benchmark, group)


def has_spread(group: Sequence[Timing]) -> bool:
    return any(timing.times and timing.times.p10 is not None for timing in group)


def human_microseconds(value: float) -> str:
    return human_seconds(value * 1e-6)


def told_apart(group: Sequence[Timing]) -> list[Timing]:
    """The series of several files get the files' names."""
    if len({timing.file for timing in group}) == 1:
        return list(group)
    return [replace(timing, series=f"{timing.series} ({pathlib.PurePath(timing.file).stem})") for timing in group]


def add_curves_by_size(part: Element, subjects: dict[str, list[Timing]], colours: dict[str, str]) -> None:
    grid = add(part, "div", class_="grid-of-charts")
    width = WIDE if len(subjects) == 1 else NARROW
    for subject, own in subjects.items():
        chart = add(grid, "div")
        add(chart, "h3", subject)
        curves = [
            Curve(
                series,
                colours[series],
                sorted((timing.bytes, timing.times.median * 1e-6) for timing in same if timing.times),
            )
            for series, same in grouped(own, lambda timing: timing.series).items()
        ]
        add_curves(
            chart,
            curves,
            Labels("bytes", "time of a call", binary_bytes, human_seconds),
            width=width,
            height=260,
            logarithmic=True,
        )


def bars_of(timings: Sequence[Timing], colours: dict[str, str]) -> Iterable[Bar]:
    for subject, own in grouped(timings, lambda timing: timing.subject).items():
        for number, timing in enumerate(own):
            times = timing.times
            if times is None:
                continue
            whisker = None if times.p10 is None or times.p90 is None else (times.p10, times.p90)
            text = human_microseconds(times.median)
            yield Bar(
                "" if number else subject,
                [Piece(colours[timing.series], times.median, f"{timing.series}: {text}")],
                text + (f", {timing.ratio[0]:.2f}x" if timing.ratio else ""),
                whisker,
            )


def add_numbers(part: Element, benchmark: str, group: Sequence[Timing]) -> None:
    details = add(part, "details")
    add(details, "summary", "All numbers")
    names = list(dict.fromkeys(name for timing in group for name, _ in timing.facts))
    sized = any(timing.bytes for timing in group)
    spread = has_spread(group)
    headings = [
        "measured",
        *(["bytes"] if sized else []),
        "by",
        "median",
        *(["10% .. 90%"] if spread else []),
        *names,
        "times the step alone [95%]" if benchmark == "ddp" else "times gradwire's [95%]",
    ]
    rows = []
    for timing in group:
        facts, times = dict(timing.facts), timing.times
        between = "-"
        if times and times.p10 is not None and times.p90 is not None:
            between = f"{human_microseconds(times.p10)} .. {human_microseconds(times.p90)}"
        rows.append(
            [
                timing.subject,
                *([binary_bytes(timing.bytes)] if sized else []),
                timing.series,
                human_microseconds(times.median) if times else "-",
                *([between] if spread else []),
                *(facts.get(name, "-") for name in names),
                "{:.2f}x [{:.2f}, {:.2f}]".format(*timing.ratio) if timing.ratio else timing.missing or "-",
            ]
        )
    add_table(details, headings, rows)
