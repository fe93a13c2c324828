# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The command line."""

from __future__ import annotations

import argparse
import pathlib
import sys

from .lines import ReportError
from .page import make_report


def main(arguments: list[str] | None = None) -> int:
    """Makes a page as `arguments` say (default: those of the process). Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="gradwire.report",
        description="Makes a page of what char_lm --json and gradwire-bench --json wrote: loss, time of a step, bytes, "
        "timelines of buckets, and times beside those of peers.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="JSON lines; several are shown beside each other")
    parser.add_argument(
        "-o", "--output", default="report.html", metavar="PAGE", help="the page to write (default report.html)"
    )
    options = parser.parse_args(arguments)
    try:
        page = make_report(options.files)
    except ReportError as error:
        print(f"gradwire.report: {error}", file=sys.stderr)
        return 2
    try:
        pathlib.Path(options.output).write_text(page, encoding="utf-8")
    except OSError as error:
        print(f"gradwire.report: {options.output} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    return 0
