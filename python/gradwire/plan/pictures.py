# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Plots as SVG files, in the manner of gradwire.report's pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from ..report.charts import BOTTOM, LEFT, RIGHT, TOP, Axis
from ..report.elements import Element, add
from ..report.pictures import CHARACTER, CAPTION, LEGEND, STYLE, TITLE, WIDTH
from ..report.text import human_seconds
from .units import PlanError, rate_text

HEIGHT = 380.0
COLOURS = ("own", "pytorch", "openmpi", "other", "own-too", "soft")
Point = tuple[float, float]


@dataclass(frozen=True)
class Labels:
    title: str
    x: str
    caption: str
    write_x: Callable[[float], str]


def legend_rows(names: Sequence[str]) -> list[list[str]]:
    rows: list[list[str]] = [[]]
    width = 16.0
    for name in names:
        needed = 36 + CHARACTER * len(name)
        if rows[-1] and width + needed > WIDTH:
            rows.append([])
            width = 16.0
        rows[-1].append(name)
        width += needed
    return rows


def draw(labels: Labels, series: Mapping[str, Sequence[Point]], lines: bool, diagonal: bool) -> str:
    """Both axes are logarithmic; y is seconds. `lines` joins the points of a series; `diagonal` marks x = y."""
    svg = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img", "aria-label": labels.title})
    add(svg, "style", STYLE)
    rows = legend_rows(list(series))
    top = TITLE + LEGEND * len(rows) + TOP
    bottom = top + HEIGHT
    whole = bottom + BOTTOM + CAPTION
    svg.set("viewBox", f"0 0 {WIDTH} {whole:.0f}")
    svg.set("width", str(WIDTH))
    add(svg, "rect", class_="page", width="100%", height=whole, rx=8)
    add(svg, "text", labels.title, class_="title", x=16, y=TITLE - 6)
    colours = {name: f"fill:var(--{COLOURS[number % len(COLOURS)]})" for number, name in enumerate(series)}
    for number, row in enumerate(rows):
        x = 16.0
        for name in row:
            add(svg, "rect", x=x, y=TITLE + LEGEND * number + 3, width=12, height=12, rx=3, style=colours[name])
            add(svg, "text", name, class_="name", x=x + 18, y=TITLE + LEGEND * number + 13)
            x += 36 + CHARACTER * len(name)
    xs = [point[0] for points in series.values() for point in points]
    ys = [point[1] for points in series.values() for point in points]
    if diagonal:
        xs = ys = [*xs, *ys]
    x_axis = Axis(xs, LEFT, WIDTH - RIGHT - 8, logarithmic=True)
    y_axis = Axis(ys, bottom, top, logarithmic=True)
    for tick in y_axis.ticks:
        at = round(y_axis.place(tick), 1)
        add(svg, "line", class_="grid", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at)
        add(svg, "text", human_seconds(tick), x=LEFT - 8, y=at + 4, text_anchor="end")
    for tick in x_axis.ticks:
        at = round(x_axis.place(tick), 1)
        add(svg, "line", class_="grid", x1=at, x2=at, y1=top, y2=bottom)
        add(svg, "text", labels.write_x(tick), x=at, y=bottom + 18, text_anchor="middle")
    if diagonal:
        low, high = min(xs), max(xs)
        add(svg, "line", class_="grid", x1=x_axis.place(low), y1=y_axis.place(low), x2=x_axis.place(high),
            y2=y_axis.place(high), style="stroke-width:2")  # fmt: skip
    for name, points in series.items():
        places = [(round(x_axis.place(x), 1), round(y_axis.place(y), 1)) for x, y in points]
        if lines:
            path = "M" + "L".join(f"{x} {y}" for x, y in places)
            add(svg, "path", class_="curve", d=path, style=colours[name].replace("fill:", "stroke:"))
        for x, y in places:
            add(svg, "circle", cx=x, cy=y, r=3, style=colours[name])
    add(svg, "text", labels.x, x=LEFT, y=bottom + BOTTOM - 8)
    add(svg, "text", labels.caption, x=16, y=whole - 8)
    return ElementTree.tostring(svg, encoding="unicode") + "\n"


def plot_rates(title: str, caption: str, series: Mapping[str, Sequence[Point]]) -> str:
    """Seconds by the rate of the links. Points without a limit are left out; throws PlanError where no others are."""
    drawn = {name: sorted(point for point in points if math.isfinite(point[0])) for name, points in series.items()}
    if not all(drawn.values()):
        raise PlanError("a plot has the rates on one axis, and 'none' has no place there; give a --rate with a limit")
    return draw(Labels(title, "bits a second of every host's link", caption, rate_text), drawn, True, False)


def plot_errors(title: str, caption: str, series: Mapping[str, Sequence[Point]]) -> str:
    """(measured, predicted) seconds. What lies on the line was predicted exactly."""
    labels = Labels(title, "measured; upwards: predicted", caption, human_seconds)
    return draw(labels, series, False, True)
