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
      --own: #1f6feb; --own-too: #12b5cb; --pytorch: #d9480f; --openmpi: #2b8a3e; --other: #9c36b5;
      --forward: #a9b8cf; --backward: #7d92b2; --wait: #f1c7a3; --optimizer: #5c6f8c; }
@media (prefers-color-scheme: dark) {
  svg { --page: #14181e; --text: #e6e9ee; --soft: #a0abb9; --line: #343d49;
        --own: #6ea8fe; --own-too: #5ce1f2; --pytorch: #ff8a5c; --openmpi: #69db7c; --other: #da8ce8;
        --forward: #4d607d; --backward: #6c83a5; --wait: #7d5737; --optimizer: #93a7c6; }
}
.page { fill: var(--page); }
text { fill: var(--soft); font: 12px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
.title { fill: var(--text); font-size: 16px; font-weight: 600; }
.name, .value { fill: var(--text); }
.grid { stroke: var(--line); }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round; }
"""
CHARACTER = 6.9  # width of one in a label, at most on average


@dataclass(frozen=True)
class Picture:
    name: str
    title: str
    draw: Callable[[Element, Sequence[Timing]], float]  # returns the height that it took
    takes: Callable[[Timing], bool]


def write_pictures(folder: str, timings: Sequence[Timing]) -> list[str]:
    """Writes NAME.svg for each picture that there are times for, and returns the paths. Makes the folder. Throws ReportError when
    there are none, and OSError."""
    written = []
    for picture in PICTURES:
        shown = [timing for timing in timings if timing.times and picture.takes(timing)]
        if not shown:
            continue
        path = pathlib.Path(folder) / f"{picture.name}.svg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(drawn(picture, shown), encoding="utf-8")
        written.append(str(path))
    if not written:
        raise ReportError(f"{folder}: the files have no times for a picture: all_reduce, ddp or network")
    return written


def new_picture(title: str) -> Element:
    """An SVG with a title, below which TITLE is the first free place. finished() makes it whole."""
    svg = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img", "aria-label": title})
    add(svg, "style", STYLE)
    add(svg, "rect", class_="page", width="100%", height="100%", rx=8)
    add(svg, "text", title, class_="title", x=16, y=TITLE - 6)
    return svg


def finished(svg: Element, height: float) -> str:
    """The text of new_picture(), `height` pixels high."""
    svg.set("viewBox", f"0 0 {WIDTH} {height:.0f}")
    svg.set("width", str(WIDTH))
    for page in svg.iter("rect"):
        page.set("height", f"{height:.0f}")
        break
    return ElementTree.tostring(svg, encoding="unicode") + "\n"


def drawn(picture: Picture, timings: Sequence[Timing]) -> str:
    svg = new_picture(picture.title)
    height = TITLE + picture.draw(svg, timings)
    if (origin := timings[0].origin) is not None:
        add(svg, "text", f"{origin.machine}; {origin.versions}; {origin.day}", x=16, y=height + CAPTION - 8)
        height += CAPTION
    return finished(svg, height)


def colours_of(series: Iterable[str]) -> dict[str, str]:
    """Whoever is compared has one colour in all pictures."""
    colours: dict[str, str] = {}
    for name in series:
        if name.startswith("gradwire"):
            colours[name] = "var(--own-too)" if "var(--own)" in colours.values() else "var(--own)"
        else:
            known = (peer for peer in ("PyTorch", "OpenMPI") if peer in name)
            colours[name] = f"var(--{next(known, 'other').lower()})"
    return colours


def add_names(svg: Element, colours: dict[str, str], top: float) -> None:
    x = 16.0
    for name, colour in colours.items():
        add(svg, "rect", x=x, y=top + 3, width=12, height=12, rx=3, style=f"fill:{colour}")
        add(svg, "text", name, class_="name", x=x + 18, y=top + 13)
        x += 36 + CHARACTER * len(name)


def draw_sizes(svg: Element, timings: Sequence[Timing]) -> float:
    """Curves of time by size, both logarithmic."""
    height = 340.0
    colours = colours_of(dict.fromkeys(timing.series for timing in timings))
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


@dataclass(frozen=True)
class Row:
    label: str
    colour: str
    value: float
    text: str  # the value as a reader wants it


def add_bars(svg: Element, rows: Sequence[Row], top: float, write_tick: Callable[[float], str], unit: str) -> float:
    """Bars from zero, with an axis below them. Returns the height."""
    bottom = top + len(rows) * ROW
    left = 26 + CHARACTER * max(len(row.label) for row in rows)
    right = WIDTH - 24 - CHARACTER * max(len(row.text) for row in rows)
    axis = Axis([0.0, *(row.value for row in rows)], left, right, ticks=5)
    for tick in axis.ticks:
        x = round(axis.place(tick), 1)
        add(svg, "line", class_="grid", x1=x, x2=x, y1=top, y2=bottom)
        add(svg, "text", write_tick(tick), x=x, y=bottom + 16, text_anchor="middle")
    add(svg, "text", unit, x=16, y=bottom + 16)
    zero = axis.place(0)
    for number, row in enumerate(rows):
        y = top + number * ROW
        end = axis.place(row.value)
        x, width = round(min(zero, end), 1), round(abs(end - zero), 1)
        add(svg, "text", row.label, class_="name", x=round(left - 10, 1), y=y + 16, text_anchor="end")
        add(svg, "rect", class_="bar", x=x, y=y + 4, width=width, height=ROW - 8, rx=2, style=f"fill:{row.colour}")
        add(svg, "text", row.text, class_="value", x=round(max(zero, end) + 8, 1), y=y + 16)
    return bottom - top + BOTTOM / 2


def draw_ddp(svg: Element, timings: Sequence[Timing]) -> float:
    """What DDP adds to a step, in percent of the step alone."""
    compared = [timing for timing in timings if timing.ratio]
    colours = colours_of(dict.fromkeys(timing.subject.split()[0] for timing in compared))
    add_names(svg, colours, TITLE)
    rows = []
    for timing in compared:
        assert timing.ratio is not None
        cost, low, high = (100 * (value - 1) for value in timing.ratio)
        text = f"{cost:+.1f} % [{low:+.1f}, {high:+.1f}]"
        rows.append(Row(timing.subject, colours[timing.subject.split()[0]], cost, text))
    return LEGEND + add_bars(svg, rows, TITLE + LEGEND + 4, lambda tick: f"{tick:+.0f} %", "percent of a local step")


def draw_network(svg: Element, timings: Sequence[Timing]) -> float:
    """The time of each hook on each backend."""
    colours = colours_of(dict.fromkeys(timing.series for timing in timings))
    add_names(svg, colours, TITLE)
    rows = []
    for timing in timings:
        assert timing.times is not None
        median = timing.times.median
        label = f"{timing.subject}, {timing.series}"
        rows.append(Row(label, colours[timing.series], median, human_microseconds(median)))
    return LEGEND + add_bars(svg, rows, TITLE + LEGEND + 4, human_microseconds, "median on rank 0")


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
