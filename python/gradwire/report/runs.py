# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What char_lm wrote with --json (examples/char_lm/README.md has the records)."""

from __future__ import annotations

import pathlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from .lines import Line, Span


@dataclass(frozen=True)
class Split:
    """Seconds of a step, on the thread that trains; together they are the step."""

    compute: float
    communication: float
    hook: float

    @property
    def total(self) -> float:
        return self.compute + self.communication + self.hook


@dataclass(frozen=True)
class Step:
    """A logged step: its loss, and means over the steps since the logged one before."""

    step: int
    loss: float | None  # None: it was not finite
    steps_per_second: float
    bytes_per_step: float
    split: Split


@dataclass(frozen=True)
class Bucket:
    bytes: int
    sent: int
    ready: float
    hook: Span
    calls: list[Span]


@dataclass(frozen=True)
class Timeline:
    step: int
    seconds: float
    forward: Span
    backward: Span
    wait: Span
    optimizer: Span
    buckets: list[Bucket]


@dataclass(frozen=True)
class Summary:
    steps: int
    seconds: float
    steps_per_second: float
    bytes_per_step: float
    compression: float
    hook_seconds: float  # a step, also while the training thread computes
    split: Split
    train_loss: float | None
    held_out_loss: float | None
    parameter_hash: str


@dataclass
class Run:
    file: str
    world: int
    threads: int
    backend: str
    hook: str
    dtype: str
    parameters: int
    batch: int
    first_step: int
    last_step: int  # that was asked for
    steps: list[Step] = field(default_factory=list)
    timelines: list[Timeline] = field(default_factory=list)
    summary: Summary | None = None  # None: the run did not come to its end
    label: str = ""

    def mean(self, of: Callable[[Step], float]) -> float:
        """The mean over all steps of what the logged ones say of those since the one before."""
        before, total = self.first_step, 0.0
        for step in self.steps:
            total += of(step) * (step.step - before)
            before = step.step
        return total / (before - self.first_step) if self.steps else 0.0

    def split(self) -> Split:
        if self.summary:
            return self.summary.split
        return Split(
            self.mean(lambda step: step.split.compute),
            self.mean(lambda step: step.split.communication),
            self.mean(lambda step: step.split.hook),
        )

    def bytes_per_step(self) -> float:
        return self.summary.bytes_per_step if self.summary else self.mean(lambda step: step.bytes_per_step)

    def steps_per_second(self) -> float:
        if self.summary:
            return self.summary.steps_per_second
        seconds = self.mean(lambda step: 1 / step.steps_per_second)
        return 1 / seconds if seconds else 0.0


def read_run(line: Line) -> Run:
    return Run(
        line.file,
        line.count_at("world_size"),
        line.count_at("threads"),
        line.text_at("backend"),
        line.text_at("hook"),
        line.text_at("dtype"),
        line.count_at("parameters"),
        line.count_at("batch"),
        line.count_at("first_step"),
        line.count_at("steps"),
    )


def read_split(line: Line) -> Split:
    return Split(line.number_at("compute"), line.number_at("communication"), line.number_at("hook"))


def read_step(line: Line, run: Run) -> Step:
    step = Step(
        line.count_at("step"),
        line.number_or_none("loss"),
        line.number_at("steps_per_second"),
        line.number_at("bytes_per_step"),
        read_split(line.inner("split_seconds")),
    )
    before = run.steps[-1].step if run.steps else run.first_step
    if step.step <= before:
        raise line.fail(f"step {step.step} comes after step {before}; are these the lines of one run?")
    if step.steps_per_second <= 0:
        raise line.fail("'steps_per_second' of the step record is not above 0")
    return step


def read_bucket(line: Line) -> Bucket:
    return Bucket(
        line.count_at("bytes"),
        line.count_at("sent"),
        line.number_at("ready"),
        line.span_at("hook"),
        line.spans_at("calls"),
    )


def read_timeline(line: Line) -> Timeline:
    timeline = Timeline(
        line.count_at("step"),
        line.number_at("seconds"),
        line.span_at("forward"),
        line.span_at("backward"),
        line.span_at("wait"),
        line.span_at("optimizer"),
        [read_bucket(bucket) for bucket in line.inner_list("buckets")],
    )
    if timeline.seconds <= 0:
        raise line.fail("'seconds' of the timeline record is not above 0")
    return timeline


def read_summary(line: Line) -> Summary:
    return Summary(
        line.count_at("steps"),
        line.number_at("seconds"),
        line.number_at("steps_per_second"),
        line.number_at("bytes_per_step"),
        line.number_at("compression_factor"),
        line.number_at("hook_seconds_per_step"),
        read_split(line.inner("split_seconds")),
        line.number_or_none("train_loss"),
        line.number_or_none("held_out_loss"),
        line.text_at("parameter_hash"),
    )


class RunReader:
    """Takes records of char_lm one by one; the record of a run begins a new one."""

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def take(self, line: Line, kind: str) -> None:
        line = Line(line.file, line.number, line.fields, f"{kind} record")
        if kind == "run":
            self.runs.append(read_run(line))
            return
        if not self.runs or self.runs[-1].file != line.file or self.runs[-1].summary:
            raise line.fail(f"this {kind} record belongs to no run: the record of a run must come before it")
        run = self.runs[-1]
        if kind == "step":
            run.steps.append(read_step(line, run))
        elif kind == "timeline":
            run.timelines.append(read_timeline(line))
        elif kind == "summary":
            run.summary = read_summary(line)
        else:
            raise line.fail(
                f"char_lm writes no records of the type '{kind}'; there are run, step, timeline and summary"
            )

    def finish(self) -> list[Run]:
        """The runs, with labels that tell them apart: the hook where that does, else the file."""
        for choice in (lambda run: run.hook, lambda run: pathlib.PurePath(run.file).stem, lambda run: run.file):
            labels = [choice(run) for run in self.runs]
            if max(Counter(labels).values(), default=1) == 1:
                break
        else:
            labels = [f"{run.file} ({number})" for number, run in enumerate(self.runs, 1)]
        for run, label in zip(self.runs, labels):
            run.label = label
        return self.runs
