# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Runs programs of training libraries on two ranks over Gloo and over gradwire, and compares what they report.

PYTHONPATH names the build's package, as `make test-clients` does.

`--table FILE` writes the table of docs/clients.md between the marks in FILE: each program then runs three times over
each backend, in turn, and the table has the ratio of the step times of the fastest run of each.
"""
from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAMS = pathlib.Path(__file__).resolve().parent / "programs"
# Longer than any program takes on a busy machine; DeepSpeed compiles for a minute when it runs for the first time.
GUARD = 900
# The first steps of a program pay for what later ones find done.
WARM_UP = 5
MARK = "<!-- the table: make test-clients TABLE=docs/clients.md -->"
# What stands below the table, so that the page says how its figures were measured.
METHOD = (
    "The ratio is that of the fastest of three runs over each backend, which took turns; in each run, the median time of a\n"
    "step of the slower rank. Below 1, gradwire is faster. Measured on {cores} cores; the load of the machine over the last 1,\n"
    "5 and 15 minutes was {load} at the end (the test itself is about 2 of it)."
)

# A program over Gloo is run again when it ends so: torch 2.13 does that at exit in about one run of six on a busy machine,
# where gradwire is not installed too. A program over gradwire never may.
GLOO_ABORT = "terminate called without an active exception"
GLOO_TRIES = 6

_rows: list[tuple[str, str, str]] = []
_gloo_aborts: list[str] = []


def pytest_addoption(parser):
    parser.addoption("--table", default="", help="the page whose table is written anew")


@dataclasses.dataclass
class Run:
    """What the two ranks of a program reported, by rank, and what they wrote to their screens."""

    ranks: list[dict]
    output: str

    def losses(self) -> list[list[float]]:
        return [rank["losses"] for rank in self.ranks]

    def step_seconds(self) -> float:
        """The median time of a step, of the slower rank."""
        return max(statistics.median(rank["seconds"][WARM_UP:]) for rank in self.ranks)


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1",
            "PATH": os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]),
            "TORCH_EXTENSIONS_DIR": str(ROOT / ".venv-clients" / "torch_extensions"), "RAY_DEDUP_LOGS": "0"}


def launch(command: list[str]) -> tuple[int, str]:
    """Runs a command to its end, or to the time limit; its exit status, and all that it wrote."""
    process = subprocess.Popen(command, env=_environment(), text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=GUARD)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)  # launchers pass it on to ranks, which are in groups of their own
        try:
            output, _ = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        output += f"\nnot at its end after {GUARD} s"
    return process.returncode, output


def torchrun(program: pathlib.Path, *arguments: str, options: tuple[str, ...] = ()) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*launcher, *options, str(program), *arguments]


@pytest.fixture
def run(tmp_path):
    """Runs a program of programs/ over a backend on two ranks; returns the Run of `ranks`.

    options: the program's. launcher: options of torchrun's; None where the program starts its ranks itself.
    """
    number = 0

    def run(name, backend, *options, **how):
        status, output, found = attempt(name, backend, *options, **how)
        for _ in range(GLOO_TRIES - 1):
            if status == 0 or backend != "gloo" or GLOO_ABORT not in output:
                break
            _gloo_aborts.append(name)
            status, output, found = attempt(name, backend, *options, **how)
        assert status == 0, output
        return Run([json.loads(file.read_text()) for file in found], output)

    def attempt(name, backend, *options, launcher=(), ranks=(0, 1)):
        nonlocal number
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        arguments = (backend, str(folder), *options)
        program = PROGRAMS / name
        if launcher is None:  # the program starts its ranks itself
            command = [sys.executable, str(program), *arguments]
        else:
            command = torchrun(program, *arguments, options=launcher)
        return *launch(command), [folder / f"{rank}.json" for rank in ranks]

    return run


def assert_learns(run: Run) -> None:
    for losses in run.losses():
        assert len(losses) >= 20 and sum(losses[-5:]) < sum(losses[:5]), losses


def assert_same_losses(expected: Run, found: Run) -> None:
    """Step by step and rank by rank, to a relative 1e-5: float32, summed in another order."""
    for a, b in zip(expected.losses(), found.losses(), strict=True):
        assert a == pytest.approx(b, rel=1e-5)


@pytest.fixture
def compare(run, request):
    """Runs a program over Gloo and over gradwire; asserts that it learns, and the same. Returns both runs."""

    def compare(client: str, name: str, *options: str, learns: bool = True, **how) -> tuple[Run, Run]:
        rounds = 3 if request.config.getoption("--table") else 1
        pairs = [(run(name, "gloo", *options, **how), run(name, "gradwire", *options, **how)) for _ in range(rounds)]
        for gloo, ours in pairs:
            if learns:
                assert_learns(gloo)
            assert_same_losses(gloo, ours)
        # Other programs on the machine make a run slower, never faster.
        ratio = min(ours.step_seconds() for _, ours in pairs) / min(gloo.step_seconds() for gloo, _ in pairs)
        _rows.append((client, f"{ratio:.2f}", request.node.name))
        return pairs[-1]

    return compare


def pytest_terminal_summary(terminalreporter):
    if _gloo_aborts:
        terminalreporter.write_line(f"runs over Gloo that aborted at exit and were done again: {', '.join(_gloo_aborts)}")


def pytest_sessionfinish(session, exitstatus):
    page = session.config.getoption("--table")
    if not page or exitstatus != 0:
        return
    lines = ["| client | works | losses equal Gloo's | step time over Gloo's | test |", "|---|---|---|---|---|"]
    lines += [f"| {client} | yes | yes | {ratio} | `{test}` |" for client, ratio, test in _rows]
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    lines += ["", METHOD.format(cores=os.cpu_count(), load=load)]
    path = ROOT / page
    before, _, after = path.read_text().split(MARK)
    path.write_text("\n".join([before + MARK, *lines, MARK + after]))
