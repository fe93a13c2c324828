# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""python -m gradwire.report FILE... -o PAGE"""

from __future__ import annotations

import argparse
import pathlib
import sys

if not __package__:
    # Started from the sources, as `python3 python/gradwire/report`: without gradwire itself, which needs torch.
    sys.path[0] = str(pathlib.Path(__file__).resolve().parent.parent)
    __package__ = "report"
    __import__(__package__)

from .lines import ReportError  # noqa: E402
from .page import make_report  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="gradwire.report",
        description="Makes a page of what char_lm --json and gradwire-bench --json "
        "wrote: loss, time of a step, bytes, timelines of buckets, and times beside those of peers.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="JSON lines; several are shown beside each other")
    parser.add_argument("-o", "--output", default="report.html", metavar="PAGE", help="the page (default report.html)")
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


if __name__ == "__main__":
    sys.exit(main())
