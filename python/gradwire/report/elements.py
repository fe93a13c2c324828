# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""HTML and SVG as a tree that the standard library writes out (and escapes)."""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree.ElementTree import Element, SubElement

__all__ = ["Element", "add", "add_table", "add_legend", "percent"]


def add(parent: Element, tag: str, text: str = "", **attributes: str | float | None) -> Element:
    """A child of `parent`. class_ stands for class, data_x for data-x; an attribute that is None is left out."""
    given = {
        name.rstrip("_").replace("_", "-"): value if isinstance(value, str) else f"{value:.10g}"
        for name, value in attributes.items()
        if value is not None
    }
    child = SubElement(parent, tag, given)
    child.text = text or None
    return child


def add_table(parent: Element, headings: Iterable[str | Element], rows: Iterable[Iterable[str]]) -> None:
    """Each row begins with its own heading. A column's heading may be an element."""
    table = add(add(parent, "div", class_="scroll"), "table")
    head = add(add(table, "thead"), "tr")
    for heading in headings:
        place = add(head, "th", heading if isinstance(heading, str) else "", scope="col")
        if isinstance(heading, Element):
            place.append(heading)
    body = add(table, "tbody")
    for row in rows:
        line = add(body, "tr")
        for number, cell in enumerate(row):
            add(line, "td" if number else "th", cell, scope=None if number else "row")


def add_legend(parent: Element, entries: Iterable[tuple[str, str]]) -> None:
    """(class of the colour, label) one beside the other."""
    legend = add(parent, "div", class_="legend")
    for colour, label in entries:
        entry = add(legend, "span")
        add(entry, "i", class_=f"swatch {colour}")
        add(entry, "span", label)


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole if whole else 0:.4f}%"
