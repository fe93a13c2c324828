# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Times as tables of Markdown, between two marks of a page that people write."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Iterator, Sequence

from .lines import ReportError
from .text import binary_bytes
from .timing_sections import grouped, human_microseconds
from .timings import Timing

BEGIN = "<!-- figures: begin (make bench writes what follows) -->"
END = "<!-- figures: end -->"


def fill_page(page: str, timings: Sequence[Timing]) -> None:
    """Replaces what stands between the marks of the file `page`. Throws ReportError, and OSError where writing fails."""
    try:
        text = pathlib.Path(page).read_text(encoding="utf-8")
    except OSError as error:
        raise ReportError(f"{page}: it cannot be read: {error.strerror}") from None
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ReportError(f"{page}: it has no place for tables, which is between {BEGIN} and {END}")
    if not timings:
        raise ReportError(f"{page}: the files have no times of gradwire-bench to fill it with")
    filled = before + begin + "\n\n" + "\n".join(lines_of(timings)) + "\n" + end + after
    pathlib.Path(page).write_text(filled, encoding="utf-8")


def lines_of(timings: Iterable[Timing]) -> Iterator[str]:
    for (benchmark, setting), group in grouped(timings, lambda timing: (timing.benchmark, timing.setting)).items():
        yield f"### {benchmark}: {setting}"
        yield ""
        for command in dict.fromkeys(timing.origin.command for timing in group if timing.origin):
            yield f"    {command}"
        origins = {(o.machine, o.versions, o.day): o for timing in group if (o := timing.origin)}
        for origin in origins.values():
            yield ""
            yield f"{origin.machine}; {origin.versions}; {origin.day}."
        yield ""
        yield from table_of(group)
        yield ""


def table_of(group: Sequence[Timing]) -> Iterator[str]:
    """A row for each subject and size, a column for each series."""
    series = list(dict.fromkeys(timing.series for timing in group))
    sized = any(timing.bytes for timing in group)
    facts = list(dict.fromkeys(name for timing in group for name, _ in timing.facts if name != "GB/s"))
    yield row_of(["measured", *(["bytes"] if sized else []), *series, *facts])
    yield row_of(["---"] * (1 + sized + len(series) + len(facts)))
    for (subject, size), own in grouped(group, lambda timing: (timing.subject, timing.bytes)).items():
        cells = {timing.series: cell_of(timing) for timing in own}
        known = {name: value for timing in own for name, value in timing.facts}
        yield row_of(
            [
                subject,
                *([binary_bytes(size) if size else "-"] if sized else []),
                *(cells.get(name, "-") for name in series),
                *(known.get(name, "-") for name in facts),
            ]
        )


def row_of(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def cell_of(timing: Timing) -> str:
    """Median, interval of 10 to 90 %, ratio with its interval."""
    times = timing.times
    if times is None:
        return timing.missing or "-"
    text = human_microseconds(times.median)
    if times.p10 is not None and times.p90 is not None:
        text += f" ({human_microseconds(times.p10)} to {human_microseconds(times.p90)})"
    if timing.ratio:
        text += ": **{:.2f}x** [{:.2f}, {:.2f}]".format(*timing.ratio)
    return text
