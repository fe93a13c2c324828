# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The command line."""

from __future__ import annotations

import argparse
import pathlib
import sys

from .chrome_trace import write_trace
from .lines import ReportError
from .page import make_report, read_files, read_flights, read_jobs
from .job_pictures import write_job_pictures
from .pictures import PICTURES, write_pictures
from .tables import fill_page


def main(arguments: list[str] | None = None) -> int:
    """Makes a page as `arguments` say (default: those of the process). Returns the exit code."""
    names_of_pictures = ", ".join(picture.name for picture in PICTURES)
    parser = argparse.ArgumentParser(
        prog="gradwire.report",
        description="Makes a page of what gradwire-run --record DIR, char_lm --json and gradwire-bench --json wrote: loss, "
        "time of a step, bytes, collectives, timelines of buckets, and times beside those of peers.",
    )
    parser.add_argument(
        "files", nargs="+", metavar="PATH", help="the DIR of --record or of --flight-dir, or JSON lines; several are shown on one page"
    )
    parser.add_argument(
        "-o", "--output", default="report.html", metavar="PAGE", help="the page to write (default report.html)"
    )
    parser.add_argument(
        "--tables", metavar="PAGE.md", help="also put the benchmarks' times as tables between the marks of PAGE.md"
    )
    parser.add_argument(
        "--pictures", metavar="FOLDER", help="also write charts as FOLDER/NAME.svg: of a recorded job step, time and choices; of last calls hang; of "
        f"benchmarks {names_of_pictures}",
    )
    parser.add_argument(
        "--trace", metavar="FILE.json", help="also write a recorded job for Perfetto (ui.perfetto.dev) and chrome://tracing"
    )
    options = parser.parse_args(arguments)
    try:
        jobs, flights = read_jobs(options.files), read_flights(options.files)
        runs, timings = read_files(options.files)
        pathlib.Path(options.output).write_text(make_report(options.files, runs, timings, jobs, flights), encoding="utf-8")
        if options.trace:
            write_trace(options.trace, jobs)
        if options.tables:
            fill_page(options.tables, timings)
        if options.pictures and (timings or not (jobs or flights)):
            write_pictures(options.pictures, timings)
        if options.pictures and (jobs or flights):
            write_job_pictures(options.pictures, jobs, flights)
    except ReportError as error:
        print(f"gradwire.report: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"gradwire.report: {error.filename} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    return 0
