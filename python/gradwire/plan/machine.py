# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""This machine, this gradwire, and the program that measures."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from .units import PlanError

NO_NAMESPACES = 77  # the exit code of `gradwire-bench network` where no namespaces may be made


def version() -> str:
    """Of this gradwire; "sources" for a folder of sources that is no part of a build."""
    try:
        from .._build import VERSION
    except ImportError:
        return "sources"
    return VERSION


def processor() -> str:
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    model = re.search(r"^model name\s*:\s*(.*)$", text, re.M)
    return model.group(1).strip() if model else os.uname().machine


def cores() -> int:
    return len(os.sched_getaffinity(0))


class Skipped(Exception):
    """The program said that this machine does not allow what was asked, and why."""


class Bench:
    """gradwire-bench."""

    def __init__(self, program: str | None) -> None:
        """`program`: its path; None looks at GRADWIRE_BENCH and PATH. Throws PlanError where there is none."""
        found = program or os.environ.get("GRADWIRE_BENCH") or shutil.which("gradwire-bench")
        if found is None or not os.access(found, os.X_OK):
            raise PlanError(
                f"{found or 'gradwire-bench'} is not there, and it measures; it comes with a build, "
                f"not with the wheel. Name it with --bench PATH"
            )
        self._program = found

    def lines(self, *arguments: str) -> list[Mapping[str, Any]]:
        """The JSON lines of a run. Throws Skipped, and PlanError where the run fails."""
        command = [self._program, *arguments, "--json"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise PlanError(f"{self._program} cannot be started: {error.strerror}") from None
        said = done.stderr.strip().splitlines()
        if done.returncode == NO_NAMESPACES:
            raise Skipped(said[-1] if said else "no network namespaces")
        if done.returncode != 0:
            raise PlanError(f"{' '.join(command)} failed: {said[-1] if said else f'exit code {done.returncode}'}")
        return [json.loads(line) for line in done.stdout.splitlines()]


def joined(values: Sequence[object]) -> str:
    return ",".join(map(str, values))
