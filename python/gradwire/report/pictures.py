# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Single charts as SVG files, for pages that people write: they ask for nothing else, and are light or dark as the
reader's system says."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from .charts import BOTTOM, LEFT, RIGHT, TOP, Axis
from .elements import Element, add
from .lines import ReportError
from .text import binary_bytes, human_seconds
from .timing_sections import grouped, human_microseconds
from .timings import Timing

WIDTH = 760
TITLE, LEGEND, CAPTION = 30, 22, 22  # heights
ROW = 24  # of a bar
STYLE = """
svg { --page: #ffffff; --text: #1c2430; --soft: #5a6472; --line: #dfe3e8;
      --c0: #1f6feb; --c1: #d9480f; --c2: #2b8a3e; --c3: #9c36b5; --c4: #b08900; }
@media (prefers-color-scheme: dark) {
  svg { --page: #14181e; --text: #e6e9ee; --soft: #a0abb9; --line: #343d49;
        --c0: #6ea8fe; --c1: #ff8a5c; --c2: #69db7c; --c3: #da8ce8; --c4: #f0c43c; }
}
.page { fill: var(--page); }
text { fill: var(--soft); font: 12px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
.title { fill: var(--text); font-size: 16px; font-weight: 600; }
.name, .value { fill: var(--text); }
.grid { stroke: var(--line); }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round; }
"""
COLOURS = 5


@dataclass(frozen=True)
class Picture:
    name: str
    title: str
    draw: Callable[[Element, Sequence[Timing]], float]  # returns the height that it took
    takes: Callable[[Timing], bool]


def write_pictures(folder: str, timings: Sequence[Timing]) -> list[str]:
    """Writes NAME.svg for each picture that there are times for, and returns the paths. Throws ReportError."""
    written = []
    for picture in PICTURES:
        shown = [timing for timing in timings if timing.times and picture.takes(timing)]
        if not shown:
            continue
        path = pathlib.Path(folder) / f"{picture.name}.svg"
        try:
            path.write_text(drawn(picture, shown), encoding="utf-8")
        except OSError as error:
            raise ReportError(f"{path}: it cannot be written: {error.strerror}") from None
        written.append(str(path))
    if not written:
        raise ReportError(f"{folder}: the files have no times for a picture: all_reduce, ddp or network")
    return written


def drawn(picture: Picture, timings: Sequence[Timing]) -> str:
    svg = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img", "aria-label": picture.title})
    add(svg, "style", STYLE)
    page = add(svg, "rect", class_="page", width="100%", height="100%", rx=8)
    add(svg, "text", picture.title, class_="title", x=16, y=TITLE - 6)
    height = TITLE + picture.draw(svg, timings)
    if (origin := timings[0].origin) is not None:
        add(svg, "text", f"{origin.machine}; {origin.versions}; {origin.day}", x=16, y=height + CAPTION - 8)
        height += CAPTION
    svg.set("viewBox", f"0 0 {WIDTH} {height:.0f}")
    svg.set("width", str(WIDTH))
    page.set("height", f"{height:.0f}")
    return ElementTree.tostring(svg, encoding="unicode") + "\n"


def colours_of(timings: Iterable[Timing]) -> dict[str, str]:
    series = dict.fromkeys(timing.series for timing in timings)
    return {name: f"var(--c{number % COLOURS})" for number, name in enumerate(series)}


def add_names(svg: Element, colours: dict[str, str], top: float) -> None:
    x = 16.0
    for name, colour in colours.items():
        add(svg, "rect", x=x, y=top + 3, width=12, height=12, rx=3, style=f"fill:{colour}")
        add(svg, "text", name, class_="name", x=x + 18, y=top + 13)
        x += 18 + 7.2 * len(name) + 18


def draw_sizes(svg: Element, timings: Sequence[Timing]) -> float:
    """Curves of time by size, both logarithmic."""
    height = 340.0
    colours = colours_of(timings)
    add_names(svg, colours, TITLE)
    top = TITLE + LEGEND + TOP
    sizes = sorted({timing.bytes for timing in timings})
    seconds = [timing.times.median * 1e-6 for timing in timings if timing.times]
    x = Axis(sizes, LEFT, WIDTH - RIGHT - 8, logarithmic=True)
    y = Axis(seconds, height - BOTTOM, top, logarithmic=True)
    for tick in y.ticks:
        add(svg, "line", class_="grid", x1=LEFT, x2=WIDTH - RIGHT, y1=y.place(tick), y2=y.place(tick))
        add(svg, "text", human_seconds(tick), x=LEFT - 8, y=y.place(tick) + 4, text_anchor="end")
    for size in sizes:
        add(svg, "line", class_="grid", x1=x.place(size), x2=x.place(size), y1=top, y2=height - BOTTOM)
        add(svg, "text", binary_bytes(size), x=x.place(size), y=height - BOTTOM + 18, text_anchor="middle")
    add(svg, "text", "bytes of a call; the time is the median on rank 0", x=LEFT, y=height - 8)
    for name, own in grouped(timings, lambda timing: timing.series).items():
        points = sorted((x.place(timing.bytes), y.place(timing.times.median * 1e-6)) for timing in own if timing.times)
        path = "M" + "L".join(f"{left:.1f} {at:.1f}" for left, at in points)
        add(svg, "path", class_="curve", d=path, style=f"stroke:{colours[name]}")
        for left, at in points:
            add(svg, "circle", cx=round(left, 1), cy=round(at, 1), r=3, style=f"fill:{colours[name]}")
    return height - TITLE


def add_bars(svg: Element, rows: Sequence[tuple[str, str, float, str]], top: float) -> float:
    """Rows of (label, colour, value, text). Returns the height."""
    left, right = 300, WIDTH - 130
    longest = max(max(value for _, _, value, _ in rows), 1e-12)
    for number, (label, colour, value, text) in enumerate(rows):
        y = top + number * ROW
        width = max(value, 0.0) / longest * (right - left)
        add(svg, "text", label, class_="name", x=left - 10, y=y + 15, text_anchor="end")
        add(svg, "rect", x=left, y=y + 3, width=round(width, 1), height=ROW - 8, rx=2, style=f"fill:{colour}")
        add(svg, "text", text, class_="value", x=round(left + width + 8, 1), y=y + 15)
    return len(rows) * ROW + 8


def draw_ddp(svg: Element, timings: Sequence[Timing]) -> float:
    """What DDP adds to a step, in percent."""
    own, peer = "var(--c0)", "var(--c1)"
    rows = []
    for timing in timings:
        if timing.ratio is None:
            continue
        cost, low, high = (100 * (value - 1) for value in timing.ratio)
        colour = own if timing.subject.startswith("gradwire") else peer
        rows.append((timing.subject, colour, cost, f"{cost:+.1f} % [{low:+.1f}, {high:+.1f}]"))
    return add_bars(svg, rows, TITLE + 4)


def draw_network(svg: Element, timings: Sequence[Timing]) -> float:
    colours = colours_of(timings)
    add_names(svg, colours, TITLE)
    rows = [
        (
            f"{timing.subject}, {timing.series}",
            colours[timing.series],
            timing.times.median,
            human_microseconds(timing.times.median),
        )
        for timing in timings
        if timing.times
    ]
    return LEGEND + add_bars(svg, rows, TITLE + LEGEND + 4)


PICTURES = (
    Picture(
        "all_reduce",
        "all_reduce between two processes of one host",
        draw_sizes,
        lambda timing: timing.benchmark == "all_reduce",
    ),
    Picture(
        "ddp",
        "What DistributedDataParallel adds to a training step, two processes",
        draw_ddp,
        lambda timing: timing.benchmark == "ddp" and timing.series == "with DDP",
    ),
    Picture(
        "network",
        "A bucket of gradients of 25 MiB between two hosts at 1 Gbit/s",
        draw_network,
        lambda timing: timing.benchmark == "network" and timing.bytes == 25 << 20 and "1gbit" in timing.setting,
    ),
)
