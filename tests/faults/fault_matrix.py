#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Injects faults of 12 classes into jobs under gradwire-run, and counts how often the diagnosis names rank, call and class.

    tests/faults/fault_matrix.py --each 20 [--build build] [--seed 1] [--at-least 0.98] [--only CLASS ...]

A fault is injected at a random place of a random step, into a random rank of 2 to 4, over shm on one host and over ucx
between two hosts (network namespaces; root is needed). The truth comes from the program itself: fault_training prints
where each rank is before each call. Right means: the rank, the class, the call in which the others were, and all that
within 2 s (--within) of the bound of a stall after the injection. A case in which the fault was not injected is wrong.
"""
from __future__ import annotations

import argparse
import collections
import concurrent.futures
import dataclasses
import fcntl
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from fault_jobs import Hosts, Launcher, Programs, why_not  # noqa: E402

BOUND = 1.0  # seconds, of a stall
PATIENCE = 60.0  # seconds for a job to come to the injection; the machine may be busy
EVALUATE_EVERY = 4

# The calls of a step, in order, as fault_training makes them: the words of the record.
CALLS = {
    "forward": {"operation": "all_gather_into_tensor", "dtype": "f64"},  # of SyncBatchNorm, in a group of its own
    "bucket0": {"operation": "all_reduce", "dtype": "f32", "bucket": 0, "function": "forward_pass"},
    "bucket1": {"operation": "all_reduce", "dtype": "f32", "bucket": 1, "function": "forward_pass"},
    "loss": {"operation": "all_reduce", "dtype": "f64", "count": 1, "function": "average_loss", "group": "default"},
    "norm": {"operation": "all_reduce", "dtype": "f32", "count": 48, "function": "sum_norms", "group": "default"},
    "word": {"operation": "broadcast", "dtype": "f32", "count": 4, "root": 0, "function": "take_word"},
    "end": {"operation": "barrier", "function": "end_step", "group": "default"},
    "evaluate": {"operation": "all_gather_into_tensor", "count": 3, "function": "evaluate", "group": "default"},
}
ANYWHERE = ["forward", "bucket0", "bucket1", "loss", "norm", "word", "end"]
REDUCED = ["bucket0", "bucket1", "loss", "norm"]

# Class of fault_training -> the class in words of the diagnosis, the places, the ways.
FAULTS = {
    "killed": ("killed", ANYWHERE, [""]),
    "stopped": ("stopped", ANYWHERE, [""]),
    "slow": ("slow", ANYWHERE, [""]),
    "other_collective": ("other collective", [*REDUCED, "end"], ["gather", "broadcast"]),
    "other_shape": ("other shape", REDUCED, [""]),
    "other_dtype": ("other dtype", REDUCED, [""]),
    "skipped": ("skipped a call", ["loop", "rest", "backward", "loss", "norm"], [""]),
    "left": ("left the loop", ["loop"], ["return", "exit", "goes_on"]),
    "hook_exception": ("exception in a hook", ["bucket0", "bucket1"], ["text", "torch", "alloc"]),
    "blocked": ("blocked", ANYWHERE, ["pipe", "lock", "fifo", "socket", "busy_loader"]),
    "out_of_memory": ("out of memory", ANYWHERE, ["caught", "uncaught", "tensor", "kernel"]),
    "cable": ("network gone", ["anywhere"], [""]),
}


@dataclasses.dataclass
class Case:
    fault: str
    site: str
    way: str
    ranks: int
    hosts: int
    rank: int
    step: int

    @property
    def expected_class(self) -> str:
        return FAULTS[self.fault][0]

    def __str__(self) -> str:
        where = f"2 x {self.ranks // 2} ranks over ucx" if self.hosts == 2 else f"{self.ranks} ranks over shm"
        return f"{self.fault}{'/' + self.way if self.way else ''} at {self.site} {self.step} on rank {self.rank}, {where}"

    def settings(self, folder: pathlib.Path) -> list[str]:
        """The arguments of fault_training."""
        values = {"fault": self.fault, "site": self.site, "way": self.way, "rank": self.rank, "step": self.step,
                  "steps": self.step + 12, "path": folder / self.way, "after": 30}
        if self.fault == "slow":
            values["compute"] = 1.2 * BOUND
        if self.fault == "skipped" and self.site == "backward":
            values["norm"] = 0
        if self.fault == "out_of_memory" and self.way == "uncaught":
            values["catch"] = 0
        if self.fault == "cable":
            values |= {"fault": "", "rank": -1, "steps": 1000000}
        if self.hosts == 2:
            values["backend"] = "ucx"
        return [f"{name}={value}" for name, value in values.items()]

    def expected_place(self) -> tuple[str, int] | None:
        """The site and the step of the call in which the other ranks are; nothing where the harness cannot foresee it."""
        if self.fault == "left":
            return "forward", self.step
        if self.fault == "skipped" and self.site == "loop":
            step = self.step  # the rank is one step ahead; it shows where one step evaluates and the other does not
            while evaluates(step) == evaluates(step + 1):
                step += 1
            return ("evaluate", step) if evaluates(step) else ("forward", step + 1)
        if self.fault == "skipped" and self.site == "rest":
            return "backward", self.step
        if self.fault == "skipped" and self.site == "backward":
            return "bucket0", self.step
        if self.fault == "cable":
            return None
        return self.site, self.step


def evaluates(step: int) -> bool:
    return step % EVALUATE_EVERY == EVALUATE_EVERY - 1


def make_case(pick: random.Random, fault: str, number: int, with_hosts: bool) -> Case:
    _, sites, ways = FAULTS[fault]
    hosts = 2 if with_hosts and (number % 2 or fault == "cable") else 1
    way = ways[number // 2 % len(ways)]
    if way == "kernel" and (hosts == 2 or not can_limit_memory()):
        way = "tensor"
    site = pick.choice(sites)
    ranks = pick.choice([2, 4]) if hosts == 2 else pick.randint(2, 4)
    if fault == "slow":
        ranks = 2 if hosts == 2 else pick.randint(2, 3)  # no more than can compute at a time, or nearly
    rank = pick.randrange(ranks)
    if hosts == 2 and site == "word" and rank != 0:
        site = "end"  # over a network nobody waits in a broadcast but for the root
    step = pick.randint(2, 3) if fault == "slow" else pick.randint(9, 20)
    return Case(fault, site, way, ranks, hosts, rank, step)


# Version 1 of control groups.
MEMORY_GROUPS = pathlib.Path("/sys/fs/cgroup/memory")


def can_limit_memory() -> bool:
    probe = MEMORY_GROUPS / f"gradwire-probe-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True


class MemoryGroup:
    """A control group with a limit of memory, for one job."""

    def __init__(self, number: int) -> None:
        self.path = MEMORY_GROUPS / f"gradwire-{os.getpid()}-{number}"
        self.path.mkdir()
        (self.path / "memory.limit_in_bytes").write_text(str(512 << 20))

    def enter(self) -> list[str]:
        return ["sh", "-c", f'echo $$ > {self.path}/cgroup.procs && exec "$@"', "sh"]

    def close(self) -> None:
        end = time.monotonic() + 10
        while True:
            try:
                self.path.rmdir()
                return
            except OSError:  # processes that were killed are still going
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)


@dataclasses.dataclass
class Answer:
    """What was said of a case."""

    named: str = "nothing"
    right: bool = False
    seconds: float = 0.0  # from the injection to the diagnosis
    why: str = ""  # the answer is wrong
    said: str = ""  # by the launchers


class Injection:
    """One job with one fault. `within`: seconds after the bound in which the diagnosis has to come."""

    def __init__(self, programs: Programs, case: Case, number: int, hosts: Hosts | None, within: float) -> None:
        self.within = within
        self.programs = programs
        self.case = case
        self.number = number
        self.hosts = hosts
        self.launchers: list[Launcher] = []
        self.injected = 0.0

    def run(self) -> Answer:
        with tempfile.TemporaryDirectory(prefix="gradwire-fault-") as name:
            folder = pathlib.Path(name)
            memory = MemoryGroup(self.number) if self.case.way == "kernel" else None
            with (folder / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                os.mkfifo(folder / "fifo")
                try:
                    self._start(folder, memory)
                    answer = self._judge(folder)
                    answer.said = "\n".join(launcher.text() for launcher in self.launchers)
                    return answer
                finally:
                    for launcher in self.launchers:
                        launcher.process.terminate()
                    for launcher in self.launchers:
                        launcher.finish(10)
                    if memory:
                        memory.close()

    def _start(self, folder: pathlib.Path, memory: MemoryGroup | None) -> None:
        bound = 1.5 * BOUND if self.case.fault == "slow" else BOUND
        if self.case.way == "kernel":
            bound = 20 * BOUND  # while the rank fills its memory, it is slow indeed
        options = ["--stall", str(bound), "--grace", "0.2", "--flight-dir", str(folder / "flight")]
        program = [self.programs.test("fault_training"), *self.case.settings(folder)]
        if self.hosts:
            each = str(self.case.ranks // 2)
            self.launchers = [self.hosts.node(self.programs, node, ["-n", each, *options], program) for node in range(2)]
        else:
            enter = memory.enter() if memory else []
            self.launchers = [Launcher([*enter, self.programs.run, "-n", str(self.case.ranks), *options, *program])]

    def _judge(self, folder: pathlib.Path) -> Answer:
        if not self._inject():
            return Answer(why="the fault was not injected")
        said, when = self._diagnosis(folder / "flight")
        if said is None:
            return Answer(why="no diagnosis")
        answer = Answer(named=said["fault"], seconds=when - self.injected)
        complaints = []
        if said["fault"] != self.case.expected_class:
            complaints.append("class")
        if not self._is_rank(said):
            complaints.append(f"ranks {said['culprits']}{'' if said['certain'] else ', not certain'}")
        if not self._is_call(said.get("call")):
            complaints.append(f"call {words_of(said.get('call'))}")
        if answer.seconds > BOUND + self.within:
            complaints.append(f"after {answer.seconds:.1f} s")
        answer.why = ", ".join(complaints)
        answer.right = not complaints
        return answer

    def _inject(self) -> bool:
        """Waits until the fault is there; the cable is pulled from here."""
        culprit = self.launchers[self.case.rank * len(self.launchers) // self.case.ranks]
        if self.case.fault != "cable":
            line = culprit.wait_for(f"[rank {self.case.rank}] injected {self.case.fault} ", PATIENCE, in_out=True)
            if line is None:
                return False
            self.injected = int(line.text.split()[-1]) / 1e9
            return True
        if culprit.wait_for(f" {self.case.step} ", PATIENCE, in_out=True) is None:
            return False
        self.injected = time.monotonic()
        self.hosts.network.cut()
        return True

    def _diagnosis(self, flight: pathlib.Path) -> tuple[dict | None, float]:
        """What gradwire-run said, or gradwire-diagnose over the records of both hosts, and when.

        An alarm before the fault is false, and counts as the answer. But the ranks of a case `slow` compute for nearly as
        long as the bound, so on a busy machine one of them may be slow indeed before the fault is there.
        """
        end = self.injected + BOUND + self.within + 15
        since = self.injected if self.case.fault == "slow" else 0.0
        if not self.hosts:
            said = self.launchers[0].wait_for("the cause", end - time.monotonic(), since=since) or \
                next((line for line in self.launchers[0].err if "disagree" in line.text), None)
            if said is None:
                return None, 0.0
            self.launchers[0].wait_for("what to do", 5, since=since)
            answer = self._ask(flight)
            # Both have to say the same.
            if answer and f"the cause: {answer['fault']}" not in said.text:
                answer["fault"] = f"{answer['fault']} ({said.text})"
            return answer, said.time
        records = [flight / f"rank-{rank}.jsonl" for rank in range(self.case.ranks)]
        since_by_files = since + time.time() - time.monotonic() - 0.05  # their clock is coarser
        while time.monotonic() < end:
            if all(record.exists() and record.stat().st_mtime >= since_by_files for record in records):
                answer = self._ask(flight)
                # What a host wrote earlier, when its ranks computed for long, shows nothing.
                if answer and answer["fault"] != "nothing is wrong":
                    return answer, time.monotonic()
            time.sleep(0.05)
        return self._ask(flight), time.monotonic()

    def _ask(self, flight: pathlib.Path) -> dict | None:
        done = subprocess.run([self.programs.diagnose, "--json", str(flight)], capture_output=True, text=True, check=False)
        return json.loads(done.stdout) if done.stdout else None

    def _is_rank(self, said: dict) -> bool:
        if self.case.fault != "cable":
            return said["culprits"] == [self.case.rank] and said["certain"]
        half = self.case.ranks // 2  # of two hosts, neither is at fault alone
        return said["culprits"] in ([], list(range(half)), list(range(half, self.case.ranks)))

    def _is_call(self, call: dict | None) -> bool:
        """Whether another rank was in this call at this time, by its own words."""
        if call is None:
            return False
        place = self.case.expected_place()
        for rank, visits in self._visits().items():
            if rank == self.case.rank and self.case.fault != "cable":
                continue
            for (site, step, time_in), following in zip(visits, [*visits[1:], None]):
                is_then = time_in <= call["called"] and (following is None or call["called"] <= following[2])
                if not is_then:
                    continue
                if place is None:
                    is_it = following is None and fits(call, site, step)
                    later = [visit for visit in visits if visit[2] > time_in]
                    is_it = is_it or sums_statistics(call, site) and all(
                        visit[1] == step and visit[0].startswith("bucket") for visit in later)
                elif place[0] in ("backward", "bucket0", "bucket1") and sums_statistics(call, site):
                    is_it = step == place[1]
                elif place[0] == "backward":
                    is_it = step == place[1] and site == "bucket0" and fits(call, site, step)
                else:
                    is_it = (site, step) == place and fits(call, site, step)
                if is_it:
                    return True
        return False

    def _visits(self) -> dict[int, list[tuple[str, int, int]]]:
        """For each rank, where it was from when on, by what it printed."""
        visits = collections.defaultdict(list)
        for launcher in self.launchers:
            for line in list(launcher.out):
                parts = line.text.split()
                if len(parts) == 6 and parts[2] == "at":
                    visits[int(parts[1].rstrip("]"))].append((parts[3], int(parts[4]), int(parts[5])))
        return {rank: sorted(each, key=lambda visit: visit[2]) for rank, each in visits.items()}


def fits(call: dict, site: str, step: int) -> bool:
    expected = CALLS[site]
    if site.startswith("bucket") and call["iteration"] != step:
        return False
    for name, value in expected.items():
        if name == "function":
            if f"({value})" not in call["line"]:
                return False
        elif call[name] != value:
            return False
    return True


def sums_statistics(call: dict, site: str) -> bool:
    """In the backward pass a rank is in two calls at a time: SyncBatchNorm's sum, and that of a bucket."""
    return site in ("forward", "bucket0", "bucket1") and call["operation"] == "all_reduce" and call["dtype"] == "f64"


def words_of(call: dict | None) -> str:
    if call is None:
        return "none"
    return (f"{call['operation']}({call['count']} {call['dtype']}) of {call['group']}, iteration {call['iteration']} "
            f"bucket {call['bucket']}, at {call['line']}")


class Runner:
    """Cases on several threads; each case over hosts has hosts of its own."""

    def __init__(self, programs: Programs, jobs: int, within: float) -> None:
        self.programs = programs
        self.within = within
        self.pool = concurrent.futures.ThreadPoolExecutor(jobs)

    def run(self, number: int, case: Case) -> Answer:
        if case.hosts == 1:
            return Injection(self.programs, case, number, None, self.within).run()
        with tempfile.TemporaryDirectory() as folder:
            hosts = Hosts(pathlib.Path(folder))
            try:
                return Injection(self.programs, case, number, hosts, self.within).run()
            finally:
                hosts.close()


def table(answers: list[tuple[Case, Answer]]) -> str:
    """Class by class, as Markdown: how often a fault (a line) was named as a class (a column)."""
    known = [FAULTS[fault][0] for fault in FAULTS]
    columns = [*known, *sorted({answer.named for _, answer in answers} - set(known))]
    counts = collections.Counter((case.expected_class, answer.named) for case, answer in answers)
    lines = [f"| injected | {' | '.join(columns)} | right |", "|---" * (len(columns) + 2) + "|"]
    for fault in known:
        all_of_it = [answer for case, answer in answers if case.expected_class == fault]
        if all_of_it:
            cells = [str(counts[fault, column] or "") for column in columns]
            right = sum(answer.right for answer in all_of_it)
            lines.append(f"| {fault} | {' | '.join(cells)} | {right} of {len(all_of_it)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    parser.add_argument("--each", type=int, default=20, help="how many faults of each class")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--at-least", type=float, default=0.98, help="the part of the cases that has to be right")
    parser.add_argument("--within", type=float, default=2, help="seconds after the bound of a stall")
    parser.add_argument("--only", nargs="+", default=list(FAULTS), choices=list(FAULTS))
    parser.add_argument("--jobs", type=int, default=2, help="how many cases at a time")
    parser.add_argument("--verbose", action="store_true", help="show what the launchers said of wrong cases")
    arguments = parser.parse_args()
    pick = random.Random(arguments.seed)
    has_ucx = (arguments.build / "lib/libgradwire_ucx.so").exists()
    reason = why_not() or ("" if has_ucx else "the build has no backend ucx")
    print(f"seed {arguments.seed}" + (f"; one host only, and no pulled cables: {reason}" if reason else ""))
    faults = [fault for fault in arguments.only if fault != "cable" or not reason]
    first = pick.randrange(1000)
    cases = [make_case(pick, fault, first + number, not reason) for fault in faults for number in range(arguments.each)]
    pick.shuffle(cases)
    runner = Runner(Programs(arguments.build.resolve()), arguments.jobs, arguments.within)
    answers = []
    for case, answer in zip(cases, runner.pool.map(runner.run, range(len(cases)), cases)):
        answers.append((case, answer))
        print(f"{'right' if answer.right else 'WRONG'}: {case}: {answer.named}, {answer.seconds:.1f} s"
              + (f" ({answer.why})" if answer.why else ""), flush=True)
        if arguments.verbose and not answer.right:
            print(answer.said, flush=True)
    right = sum(answer.right for _, answer in answers)
    print(f"\n{table(answers)}\n\n{right} of {len(answers)} right; the slowest diagnosis came "
          f"{max(answer.seconds for _, answer in answers):.1f} s after its fault, the bound of a stall was {BOUND} s")
    return 0 if right >= arguments.at_least * len(answers) else 1


if __name__ == "__main__":
    sys.exit(main())
