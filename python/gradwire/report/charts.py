# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Charts. Curves are SVG; bars and timelines are boxes, which the browser lays out with the text beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .elements import Element, add, percent

Format = Callable[[float], str]


def nice_step(span: float, count: int) -> float:
    """The smallest 1, 2 or 5 times a power of ten that cuts `span` into at most `count` parts."""
    power = 10.0 ** math.floor(math.log10(span / count))
    return next(factor * power for factor in (1, 2, 5, 10) if span / (factor * power) <= count * (1 + 1e-9))


def even_ticks(low: float, high: float, count: int) -> list[float]:
    step = nice_step(high - low, count)
    return [step * number for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


class Axis:
    """Where values lie between `begin` and `end`, in pixels, and which of them get a mark."""

    def __init__(
        self, values: Sequence[float], begin: float, end: float, logarithmic: bool = False, ticks: int = 6
    ) -> None:
        low, high = min(values), max(values)
        self._log = logarithmic and low > 0
        if low == high:
            low, high = (low / 2, high * 2) if self._log else (low - (abs(low) / 2 or 1), high + (abs(high) / 2 or 1))
        self._begin, self._end = begin, end
        self._low, self._high = self._map(low), self._map(high)
        if self._log:
            self.ticks = self._log_ticks(low, high, ticks)
        else:
            self.ticks = even_ticks(low, high, ticks)

    @staticmethod
    def _log_ticks(low: float, high: float, count: int) -> list[float]:
        powers = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
        ticks = [tick for tick in powers if low <= tick <= high]
        if len(ticks) < 3:
            ticks = [factor * power for power in powers for factor in (1, 2, 5) if low <= factor * power <= high]
        return ticks[:: math.ceil(len(ticks) / count)] if ticks else [low, high]

    def _map(self, value: float) -> float:
        return math.log10(value) if self._log else value

    def place(self, value: float) -> float:
        return self._begin + (self._map(value) - self._low) / (self._high - self._low) * (self._end - self._begin)


@dataclass(frozen=True)
class Curve:
    label: str
    colour: str  # a class
    points: Sequence[tuple[float, float | None]]  # None: a gap


@dataclass(frozen=True)
class Mark:
    """A line from top to bottom at x."""

    x: float
    title: str


@dataclass(frozen=True)
class Labels:
    """What the axes are, and how their values are written."""

    x: str
    y: str
    write_x: Format
    write_y: Format


WIDE, NARROW = 1000, 480  # of a chart on its own, and of one beside another
PHONE = 340  # of every chart on a narrow screen
MOST_DOTS = 500  # of a curve; a longer one is a line alone
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 10, 48


def on_screens(parent: Element, width: int, draw: Callable[[Element, int], None]) -> None:
    """Draws a chart of `width`, and once more for a phone, where its words would be too small. The style sheet shows one."""
    draw(add(parent, "div", class_="on-desk"), width)
    draw(add(parent, "div", class_="on-phone"), PHONE)


def add_frame(
    parent: Element, labels: Labels, x: Axis, y: Axis, width: int, height: int, x_ticks: Sequence[float] | None
) -> Element:
    svg = add(
        parent,
        "svg",
        viewBox=f"0 0 {width} {height}",
        role="img",
        aria_label=f"{labels.y} by {labels.x}",
        style=f"max-width:{1.3 * width:.0f}px" if width == PHONE else f"max-width:{width}px",
    )
    for tick in y.ticks:
        at = y.place(tick)
        add(svg, "line", class_="grid", x1=LEFT, x2=width - RIGHT, y1=at, y2=at)
        add(svg, "text", labels.write_y(tick), x=LEFT - 8, y=at + 4, text_anchor="end")
    for tick in x.ticks if x_ticks is None else x_ticks:
        at = x.place(tick)
        add(svg, "line", class_="grid", x1=at, x2=at, y1=TOP, y2=height - BOTTOM)
        add(svg, "text", labels.write_x(tick), x=at, y=height - BOTTOM + 20, text_anchor="middle")
    add(svg, "text", labels.x, class_="axis", x=(LEFT + width - RIGHT) / 2, y=height - 6, text_anchor="middle")
    return svg


def add_curves(
    parent: Element,
    curves: Sequence[Curve],
    labels: Labels,
    width: int = WIDE,
    height: int = 300,
    logarithmic: bool = False,
    marks: Sequence[Mark] = (),
) -> None:
    """`logarithmic`: both axes, with a mark at every x that there is. Where no point is finite a sentence says so."""
    known = [(x, y) for curve in curves for x, y in curve.points if y is not None]
    add(parent, "p", labels.y, class_="unit")
    if not known:
        add(parent, "p", "No value is finite.", class_="note")
        return
    on_screens(
        parent, width, lambda place, wide: draw_curves(place, curves, known, labels, wide, height, logarithmic, marks)
    )


def draw_curves(
    parent: Element,
    curves: Sequence[Curve],
    known: Sequence[tuple[float, float]],
    labels: Labels,
    width: int,
    height: int,
    logarithmic: bool,
    marks: Sequence[Mark],
) -> None:
    """`known`: the points of all curves, without gaps."""
    all_x = sorted({x for x, _ in known} | {mark.x for mark in marks})
    x = Axis(all_x, LEFT, width - RIGHT, logarithmic, max(4, width // 90))
    y_values = [value for _, value in known]
    y = Axis(y_values if logarithmic else [*y_values, *padding(y_values)], height - BOTTOM, TOP, logarithmic)
    svg = add_frame(parent, labels, x, y, width, height, all_x if logarithmic and len(all_x) <= width // 70 else None)
    for mark in marks:
        at = round(x.place(mark.x), 2)
        line = add(svg, "line", class_="mark", x1=at, x2=at, y1=TOP, y2=height - BOTTOM)
        add(line, "title", mark.title)
    for curve in curves:
        path, pen = "", "M"
        for at, value in curve.points:
            if value is not None:
                path += f"{pen}{x.place(at):.2f} {y.place(value):.2f}"
            pen = "M" if value is None else "L"
        add(svg, "path", class_=f"curve {curve.colour}", d=path or "M0 0")
        if len(curve.points) <= MOST_DOTS:
            add_dots(svg, curve, labels, x, y)


def add_dots(svg: Element, curve: Curve, labels: Labels, x: Axis, y: Axis) -> None:
    radius = 2.5 if len(curve.points) <= 60 else 1.5
    for at, value in curve.points:
        if value is None:
            continue
        left, top = round(x.place(at), 2), round(y.place(value), 2)
        dot = add(svg, "circle", class_=f"dot {curve.colour}", cx=left, cy=top, r=radius)
        add(dot, "title", f"{curve.label}: {labels.write_y(value)} at {labels.x} {labels.write_x(at)}")


def padding(values: Sequence[float]) -> tuple[float, float]:
    """A little room above and below, but not below zero for what is not."""
    room = 0.05 * (max(values) - min(values))
    low = min(values) - room
    return (0.0 if low < 0 <= min(values) else low), max(values) + room


def add_stack(
    parent: Element, layers: Sequence[Curve], highest: float, labels: Labels, width: int, height: int = 200
) -> None:
    """Areas on top of each other, the first at the bottom; the axis ends at `highest`. No layer has gaps."""
    add(parent, "p", labels.y, class_="unit")
    on_screens(parent, width, lambda place, wide: draw_stack(place, layers, highest, labels, wide, height))


def draw_stack(
    parent: Element, layers: Sequence[Curve], highest: float, labels: Labels, width: int, height: int
) -> None:
    xs = [at for at, _ in layers[0].points]
    heights = [[layer.points[i][1] or 0.0 for layer in layers] for i in range(len(xs))]
    x = Axis(xs, LEFT, width - RIGHT, ticks=max(4, width // 90))
    y = Axis([0, highest], height - BOTTOM, TOP, ticks=4)
    svg = add_frame(parent, labels, x, y, width, height, None)
    lower = [0.0] * len(xs)
    for number, layer in enumerate(layers):
        upper = [base + own[number] for base, own in zip(lower, heights)]
        there = [f"{x.place(at):.2f} {y.place(value):.2f}" for at, value in zip(xs, upper)]
        back = [f"{x.place(at):.2f} {y.place(value):.2f}" for at, value in zip(reversed(xs), reversed(lower))]
        add(svg, "path", class_=f"area {layer.colour}", d="M" + "L".join(there + back) + "Z")
        lower = upper


@dataclass(frozen=True)
class Piece:
    colour: str
    value: float
    title: str


@dataclass(frozen=True)
class Bar:
    label: str
    pieces: Sequence[Piece]
    text: str  # at its end
    whisker: tuple[float, float] | None = None  # what is beyond the end of the scale is cut off


def add_bars(parent: Element, bars: Sequence[Bar]) -> None:
    """Horizontal bars on one scale that begins at zero. A bar without a label belongs to the one above."""
    longest = max((sum(piece.value for piece in bar.pieces) for bar in bars), default=0)
    farthest = max((bar.whisker[1] for bar in bars if bar.whisker), default=0)
    longest = max(longest, min(farthest, 1.25 * longest))
    chart = add(parent, "div", class_="bars")
    for bar in bars:
        row = add(chart, "div", class_="bar first" if bar.label else "bar")
        add(row, "div", bar.label, class_="bar-label", title=bar.label or None)
        track = add(row, "div", class_="bar-track")
        for piece in bar.pieces:
            add(
                track,
                "div",
                class_=f"piece {piece.colour}",
                title=piece.title,
                data_value=repr(piece.value),
                style=f"width:{percent(piece.value, longest)}",
            )
        if bar.whisker:
            add(
                track,
                "div",
                class_="whisker",
                style=f"left:{percent(bar.whisker[0], longest)};"
                f"width:{percent(bar.whisker[1] - bar.whisker[0], longest)}",
            )
        add(row, "div", bar.text, class_="bar-text")


@dataclass(frozen=True)
class Block:
    colour: str
    begin: float
    end: float
    title: str


def add_gantt(parent: Element, length: float, rows: Iterable[tuple[str, Sequence[Block]]], write: Format) -> None:
    """Rows of blocks on one scale from 0 to `length`."""
    chart = add(parent, "div", class_="gantt", data_length=repr(length))
    ticks = even_ticks(0, length, 8)
    add(chart, "div", class_="gantt-label")
    scale = add(chart, "div", class_="gantt-scale")
    for tick in ticks:
        if tick <= 0.85 * length:  # the text goes to the right of its mark
            add(scale, "span", write(tick), style=f"left:{percent(tick, length)}")
    for label, blocks in rows:
        add(chart, "div", label, class_="gantt-label", title=label)
        track = add(chart, "div", class_="gantt-track")
        for tick in ticks:
            add(track, "b", style=f"left:{percent(tick, length)}")
        for block in blocks:
            add(
                track,
                "div",
                class_=f"block {block.colour}",
                title=block.title,
                data_begin=repr(block.begin),
                data_end=repr(block.end),
                style=f"left:{percent(block.begin, length)};width:{percent(block.end - block.begin, length)}",
            )
