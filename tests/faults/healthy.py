#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Runs healthy jobs of many kinds with the stall checks on, and counts alarms: each is a failure.

    tests/faults/healthy.py --minutes 60 [--build build] [--seed 1] [--stall 5] [--kind "elastic, 2 hosts"]

The jobs differ in ranks, backends and hosts (network namespaces; root is needed), in the time that ranks compute, in
long first steps and pauses for checkpoints, in uneven inputs, and in ranks that join and leave an elastic job.
"""
from __future__ import annotations

import argparse
import collections
import mmap
import pathlib
import random
import struct
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from fault_jobs import Hosts, Launcher, Programs, alarms, why_not  # noqa: E402

SKIPPED = 77  # the exit code
PATIENCE = 400  # seconds that a job may take


def training(pick: random.Random, bound: float, **more) -> dict:
    """Settings of fault_training."""
    settings = {
        "steps": pick.randint(20, 60),
        "compute": pick.choice([0.0005, 0.005, 0.05]),
        "uneven": pick.choice([0, 0, 0.5, 2]),
        "first": pick.choice([0, 0, 0.3 * bound]),
        "checkpoint_every": pick.choice([0, 0, 10, 20]),
        "checkpoint": pick.choice([0.05 * bound, 0.3 * bound]),
    }
    if pick.random() < 0.25:
        settings |= {"join": 1, "norm": 0}
    return settings | more


def words(settings: dict) -> list[str]:
    return [f"{name}={value}" for name, value in settings.items()]


class Jobs:
    """Each method runs one job and returns its launchers, with a description."""

    def __init__(self, programs: Programs, pick: random.Random, bound: float, folder: pathlib.Path) -> None:
        self.programs = programs
        self.pick = pick
        self.folder = folder
        self.bound = bound
        self.options = ["--stall", str(bound)]
        self.hosts = None if why_not() else Hosts(folder)

    def one_host(self, backend: str, ranks: int) -> tuple[str, list[Launcher], list[int]]:
        settings = training(self.pick, self.bound, backend=backend)
        job = Launcher([self.programs.run, "-n", str(ranks), *self.options,
                        self.programs.test("fault_training"), *words(settings)])
        return f"{ranks} ranks, {settings}", [job], [job.finish(PATIENCE)]

    def two_hosts(self, backend: str, ranks: int) -> tuple[str, list[Launcher], list[int]]:
        settings = training(self.pick, self.bound, backend=backend)
        jobs = [self.hosts.node(self.programs, node, ["-n", str(ranks), *self.options],
                                [self.programs.test("fault_training"), *words(settings)]) for node in range(2)]
        return f"2 x {ranks} ranks, {settings}", jobs, [job.finish(PATIENCE) for job in jobs]

    def elastic(self) -> tuple[str, list[Launcher], list[int]]:
        """A second host joins, and may leave again in good order."""
        begin, more = self.pick.randint(1, 3), self.pick.randint(1, 2)
        leaves = self.pick.random() < 0.5
        page = self.folder / "page"
        page.unlink(missing_ok=True)
        worker = [self.programs.test("elastic_worker"), "600", str(self.folder)]
        secret = ["--secret-file", str(self.hosts.secret)]
        first = self.hosts.start(0, [self.programs.run, "--elastic", "1:6", "-n", str(begin), "--rendezvous",
                                     self.hosts.address(), *secret, *self.options, *worker])
        gate = Gate(page)
        gate.open_until(200)
        second = self.hosts.start(1, [self.programs.run, "--join", self.hosts.address(), "-n", str(more), *secret,
                                      *self.options, *worker])
        gate.wait_for_size(begin + more)
        gate.open_until(400)
        if leaves:
            second.process.terminate()
            gate.wait_for_size(begin)
        gate.open_until(600)
        gate.close()
        codes = [first.finish(PATIENCE), second.finish(PATIENCE)]
        return f"{begin} ranks, {more} join{', and leave' if leaves else ''}", [first, second], codes


class Gate:
    """The page of elastic_worker (tests/elastic/elastic_page.h): workers wait before the step `budget`."""

    _HEAD = struct.Struct("4q")  # budget, newest step, number of entries, followed
    _ENTRY = struct.Struct("8q")  # pid, epoch, step, size, ...
    _SIZE = _HEAD.size + 20000 * _ENTRY.size

    def __init__(self, path: pathlib.Path) -> None:
        end = time.monotonic() + PATIENCE
        while not path.exists() or path.stat().st_size == 0:
            if time.monotonic() > end:
                raise TimeoutError("no worker has come")
            time.sleep(0.02)
        if path.stat().st_size != self._SIZE:
            raise ValueError(f"{path} has {path.stat().st_size} bytes, and not {self._SIZE}: ElasticPage is another one")
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    def open_until(self, step: int) -> None:
        """In pieces, as steps take time."""
        (budget,) = struct.unpack_from("q", self._memory)
        for value in range(budget, step + 1, 4):
            struct.pack_into("q", self._memory, 0, value)
            time.sleep(0.02)
        struct.pack_into("q", self._memory, 0, step)

    def wait_for_size(self, size: int) -> None:
        """Lets the job go on until an epoch of so many ranks has begun."""
        end = time.monotonic() + PATIENCE
        while True:
            count = self._HEAD.unpack_from(self._memory)[2]
            sizes = [self._ENTRY.unpack_from(self._memory, self._HEAD.size + place * self._ENTRY.size)[3]
                     for place in range(count)]
            if sizes and sizes[-1] == size:
                return
            if time.monotonic() > end:
                raise TimeoutError(f"no epoch of {size} ranks: {sizes}")
            (budget,) = struct.unpack_from("q", self._memory)
            struct.pack_into("q", self._memory, 0, min(budget + 1, 590))
            time.sleep(0.2)  # members in the last step let nobody in any more

    def close(self) -> None:
        self._memory.close()


def kinds(jobs: Jobs, pick: random.Random) -> dict:
    found = {
        "shm": lambda: jobs.one_host("shm", pick.randint(1, 6)),
        "gloo": lambda: jobs.one_host("gloo", pick.randint(2, 4)),
    }
    if jobs.hosts:
        found |= {
            "gloo, 2 hosts": lambda: jobs.two_hosts("gloo", pick.randint(1, 2)),
            "ucx, 2 hosts": lambda: jobs.two_hosts("ucx", pick.randint(1, 3)),
            "hybrid, 2 hosts": lambda: jobs.two_hosts("hybrid", pick.randint(2, 3)),
            "elastic, 2 hosts": jobs.elastic,
        }
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--jobs", type=int, default=sys.maxsize, help="end after so many jobs")
    parser.add_argument("--kind", action="append", help="jobs of this kind only; may be given several times")
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--stall", type=float, default=5, help="the bound, in seconds")
    arguments = parser.parse_args()
    pick = random.Random(arguments.seed)
    print(f"seed {arguments.seed}, bound {arguments.stall} s", flush=True)
    counts: collections.Counter[str] = collections.Counter()
    failures = 0
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        jobs = Jobs(Programs(arguments.build.resolve()), pick, arguments.stall, pathlib.Path(folder))
        if jobs.hosts is None:
            print(f"one host only: {why_not()}")
        try:
            while time.monotonic() - begin < arguments.minutes * 60 and counts.total() < arguments.jobs:
                found = {kind: run for kind, run in kinds(jobs, pick).items()
                         if not arguments.kind or kind in arguments.kind}
                if not found:
                    print(f"skipped: no kind {arguments.kind} here; there are {', '.join(kinds(jobs, pick))}")
                    return SKIPPED
                kind, run = pick.choice(list(found.items()))
                started = time.monotonic()
                what, launchers, codes = run()
                heard = alarms(launchers)
                counts[kind] += 1
                print(f"{time.strftime('%H:%M:%S')} {kind}: {what}: {time.monotonic() - started:.1f} s", flush=True)
                if heard or any(codes):
                    failures += 1
                    print(f"FAILED, exit codes {codes}\n" + "\n".join(job.text() for job in launchers), flush=True)
        finally:
            if jobs.hosts:
                jobs.hosts.close()
    print(f"{sum(counts.values())} jobs in {(time.monotonic() - begin) / 60:.1f} minutes, "
          f"{failures} with an alarm or an error: {dict(counts)}")
    return 1 if failures or not counts else 0


if __name__ == "__main__":
    sys.exit(main())
