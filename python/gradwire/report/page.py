# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The page: one HTML file that asks for nothing else."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from xml.etree import ElementTree

from .elements import Element, add
from .flight_sections import add_flight_section
from .flights import FlightRank, is_flight_folder, read_flight_folder
from .lines import ReportError, read_lines
from .record_sections import add_record_sections
from .recorded import RankRecord, read_folder
from .run_sections import add_run_sections
from .runs import Run, RunReader
from .text import count_of
from .timing_sections import add_timing_sections
from .timings import Timing, read_timings


@dataclass(frozen=True)
class Job:
    """A job that was recorded in a folder."""

    folder: str
    ranks: list[RankRecord]


@dataclass(frozen=True)
class Flight:
    """The last calls of a job, in a folder of --flight-dir."""

    folder: str
    ranks: list[FlightRank]


def read_jobs(paths: Sequence[str]) -> list[Job]:
    """The jobs of those `paths` that are folders, without those of last calls. Throws ReportError."""
    folders = [path for path in paths if pathlib.Path(path).is_dir() and not is_flight_folder(path)]
    return [Job(path, read_folder(path)) for path in folders]


def read_flights(paths: Sequence[str]) -> list[Flight]:
    """The last calls in those `paths` that are folders of --flight-dir. Throws ReportError."""
    return [Flight(path, read_flight_folder(path)) for path in paths if is_flight_folder(path)]


def read_files(files: Sequence[str]) -> tuple[list[Run], list[Timing]]:
    """All records of `files` that are no folders. Throws ReportError."""
    files = [file for file in files if not pathlib.Path(file).is_dir()]
    reader, timings = RunReader(), list[Timing]()
    for file in files:
        for line in read_lines(file):
            if "type" in line.fields:
                reader.take(line, line.text_at("type"))
            elif "benchmark" in line.fields:
                timings += read_timings(line)
            else:
                raise line.fail(
                    "this record is neither char_lm's (it has no 'type') nor gradwire-bench's (no 'benchmark')"
                )
    return reader.finish(), timings


def make_report(
    files: Sequence[str],
    runs: Sequence[Run],
    timings: Sequence[Timing],
    jobs: Sequence[Job] = (),
    flights: Sequence[Flight] = (),
) -> str:
    """The page of what read_files(), read_jobs() and read_flights() read."""
    page = Element("html", {"lang": "en"})
    add_head(page, " ".join(pathlib.PurePath(file).name for file in files))
    body = add(page, "body")
    header = add(body, "header")
    add(header, "h1", "gradwire report")
    parts = [count_of(len(jobs), "recorded job")] if jobs else []
    parts += [f"the last calls of {count_of(len(flights), 'job')}"] if flights else []
    parts += [count_of(len(runs), "run")] if runs else []
    parts += (
        [f"times from {count_of(len({timing.file for timing in timings}), 'file')} of gradwire-bench"]
        if timings
        else []
    )
    add(header, "p", " and ".join(parts) + ": " + ", ".join(files))
    main = add(body, "main")
    for job in jobs:
        add_record_sections(main, job.folder, job.ranks)
    for flight in flights:
        add_flight_section(main, flight.folder, flight.ranks)
    if runs:
        add_run_sections(main, runs)
    add_timing_sections(main, timings)
    return "<!DOCTYPE html>\n" + ElementTree.tostring(page, encoding="unicode", method="html") + "\n"


def add_head(page: Element, title: str) -> None:
    head = add(page, "head")
    add(head, "meta", charset="utf-8")
    add(head, "meta", name="viewport", content="width=device-width, initial-scale=1")
    # The browser itself then refuses whatever is not in the file.
    add(
        head,
        "meta",
        http_equiv="Content-Security-Policy",
        content="default-src 'none'; style-src 'unsafe-inline'; img-src data:",
    )
    add(head, "link", rel="icon", href="data:,")
    add(head, "title", f"gradwire report: {title}")
    add(head, "style", resources.files(__package__ or "").joinpath("page.css").read_text(encoding="utf-8"))


__all__ = ["Flight", "Job", "ReportError", "make_report", "read_files", "read_flights", "read_jobs"]
