# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks as threads of this process: each has a group over the backend "threads", and a lock of the interpreter to share.

Tests that need processes start few of them, as forks where run_pytest.py runs them: to import torch takes seconds.
"""
from __future__ import annotations

import itertools
import os
import pathlib
import signal
import sys
import threading
from typing import Any, Callable

import pytest

import forks
import gradwire
from gradwire import distributed as dist

_numbers = itertools.count()
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# A shell that runs the tests in the background has them ignore Ctrl-C, and ranks would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def block_of(page: str, part: str) -> str:
    """The Python program in a page of docs/ that has `part` in it."""
    blocks = (ROOT / "docs" / page).read_text(encoding="utf-8").split("```python\n")[1:]
    [found] = [block.split("```")[0] for block in blocks if part in block.split("```")[0]]
    return found


class Ranks:
    """Runs a function once for each rank, with a group; returns what each returned, raises what the first raised."""

    def __init__(self, backend: str) -> None:
        self.backend = backend

    def __call__(self, size: int, body: Callable[..., Any], timeout: float = 120) -> list[Any]:
        store = dist.HashStore()
        results: list[Any] = [None] * size
        errors: list[BaseException | None] = [None] * size
        prefix = f"test{next(_numbers)}"

        def run(rank: int) -> None:
            try:
                group = dist.make_process_group(self.backend, dist.PrefixStore(prefix, store), rank, size)
                try:
                    results[rank] = body(group)
                finally:
                    group.shutdown()
            except BaseException as error:  # noqa: BLE001
                errors[rank] = error

        threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout)
        assert not any(thread.is_alive() for thread in threads), "a rank hangs"
        self.errors = errors
        return results

    def all_well(self, size: int, body: Callable[..., Any]) -> list[Any]:
        results = self(size, body)
        for error in self.errors:
            if error is not None:
                raise error
        return results


@pytest.fixture
def ranks() -> Ranks:
    return Ranks("threads")


@pytest.fixture
def run_script(tmp_path: pathlib.Path) -> Callable[..., list[Any]]:
    """Starts a script on `size` processes, which find RANK, WORLD_SIZE and a file to meet in their environment.

    The processes are forks (forks.py) unless `anew` is set. `enter` gives, for a rank, the first words of a command line that
    runs on the rank's host; such processes start anew, too.
    """
    started: list[Any] = []

    def start(source: str, size: int, *arguments: str, anew: bool = False,
              enter: Callable[[int], list[str]] | None = None) -> list[Any]:
        script = tmp_path / "script.py"
        script.write_text(source)
        # Without STARTUP: what starts anew starts as for a user.
        given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path != str(forks.STARTUP)]
        where = os.pathsep.join([str(pathlib.Path(gradwire.__file__).parent.parent), *given])
        for rank in range(size):
            environment = {**os.environ, "PYTHONPATH": where, "RANK": str(rank), "WORLD_SIZE": str(size),
                           "MEET": str(tmp_path / "meet"), "OMP_NUM_THREADS": "1"}
            command = [*(enter(rank) if enter else []), sys.executable, str(script), *arguments]
            started.append(forks.start(command, environment, anew or enter is not None))
        return started[-size:]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
