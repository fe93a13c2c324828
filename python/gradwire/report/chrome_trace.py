# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""A recorded job in the Trace Event Format, which Perfetto and chrome://tracing open: a process for each rank, and in it a
thread for what trains and one for each lane."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from .choice_sections import choice_text
from .lines import ReportError
from .matched_steps import clock
from .recorded import AVERAGES, BUCKET, CALL, CHOSEN, LOSS, STEP, WAIT, Event, RankRecord

if TYPE_CHECKING:
    from .page import Job

# Perfetto takes process 0 and thread 0 for those of the kernel, so neither number is used.
TRAINING = 1  # the row of the phases; lanes have the rows below, and then other threads with calls
PHASES = ("forward", "backward", "wait for buckets", "rest")

TraceEvent = dict[str, Any]
Key = TypeVar("Key", int, "tuple[int, int]")


def process_of(rank: int) -> int:
    return rank + 1


class Rows:
    """The rows of a rank in the trace, its thread ids: rows of lanes and of other threads never have one number, as threads of
    a container and lanes do."""

    def __init__(self, record: RankRecord) -> None:
        buckets = [event for event in record.events if event.bucket is not None]
        self._training = {event.thread for event in record.events if event.kind == STEP}
        # Two DistributedDataParallel have lanes of one number, with threads of their own.
        self.lanes = self._numbered({(event.lane, event.thread) for event in buckets if event.lane >= 0}, TRAINING + 1)
        calls = [event for event in record.events if event.bucket is None and event.kind in (CALL, WAIT)]
        elsewhere = {event.thread for event in calls} - self._training
        self.others = self._numbered(elsewhere if self._training else set(), TRAINING + 1 + len(self.lanes))

    def of(self, event: Event) -> int:
        if event.bucket is not None:
            return self.lanes.get((event.lane, event.thread), TRAINING)
        return self.others.get(event.thread, TRAINING)

    @staticmethod
    def _numbered(keys: set[Key], first: int) -> dict[Key, int]:
        return {key: first + place for place, key in enumerate(sorted(keys))}


def nanoseconds(seconds: float) -> int:
    """The unit in which Perfetto counts."""
    return round(1e9 * seconds)


def microseconds(whole_nanoseconds: int) -> float:
    """The quarter keeps the nanosecond whether a reader rounds or cuts off: an end that was cut off alone would lie outside of
    the event around it, and Perfetto drops such events."""
    return (whole_nanoseconds + 0.25) / 1000


def complete(name: str, category: str, rank: int, thread: int, begin: float, end: float, **facts: Any) -> TraceEvent:
    """An event of the type "X": it has a begin and a duration."""
    since, until = nanoseconds(begin), nanoseconds(end)
    return {
        "ph": "X", "name": name, "cat": category, "pid": process_of(rank), "tid": thread, "ts": microseconds(since),
        "dur": microseconds(max(until - since, 0)), "args": facts,
    }  # fmt: skip


def named(kind: str, rank: int, thread: int, **facts: Any) -> TraceEvent:
    """An event of the type "M", which says how a process or thread is called."""
    return {"ph": "M", "name": kind, "pid": process_of(rank), "tid": thread, "args": facts}


def events_of_step(rank: int, event: Event, offset: float, has_buckets: bool) -> Iterator[TraceEvent]:
    begin, end = event.begin + offset, event.end + offset
    sent = {"sent": event.sent} if has_buckets else {}  # else it is not known
    yield complete(f"step {event.step}", "step", rank, TRAINING, begin, end, step=event.step, **sent)
    limits = [*event.times, event.end]
    for name, since, until in zip(PHASES, limits, limits[1:]):
        if since > 0:
            yield complete(name, "phase", rank, TRAINING, since + offset, (until or event.end) + offset, step=event.step)


def events_of_rank(record: RankRecord, offset: float) -> Iterator[TraceEvent]:
    rank, has_buckets = record.rank, record.has_buckets()
    yield named("process_name", rank, TRAINING, name=f"rank {rank} ({record.host})")
    yield named("process_sort_index", rank, TRAINING, sort_index=rank)
    yield named("thread_name", rank, TRAINING, name="training thread")
    rows = Rows(record)
    for (lane, _), row in rows.lanes.items():
        yield named("thread_name", rank, row, name=f"lane {lane}")
    for other, row in rows.others.items():
        yield named("thread_name", rank, row, name=f"thread {other}")
    for event in record.events:
        thread, begin, end = rows.of(event), event.begin + offset, event.end + offset
        where = {"step": event.step} if event.bucket is None else {"step": event.step, "bucket": event.bucket}
        if event.kind == STEP:
            yield from events_of_step(rank, event, offset, has_buckets)
        elif event.kind == BUCKET:
            ready = event.times[0] + offset
            facts = {**where, "bytes": event.bytes, "sent": event.sent}
            yield {
                "ph": "i", "s": "p", "name": f"bucket {event.bucket} is ready", "cat": "bucket",
                "pid": process_of(rank), "tid": TRAINING, "ts": microseconds(nanoseconds(ready)), "args": facts,
            }  # fmt: skip
            # Without a lane the thread that trains goes on before the average is there.
            until = end if event.lane >= 0 else event.times[1] + offset
            yield complete(f"bucket {event.bucket}: {event.name}", "bucket", rank, thread, begin, until, **facts)
        elif event.kind == CALL:
            yield complete(event.name, "collective", rank, thread, begin, end, bytes=event.bytes, sent=event.sent, **where)
        elif event.kind == AVERAGES:
            yield complete(PHASES[2], "phase", rank, TRAINING, begin, end, step=event.step)
        elif event.kind == WAIT:
            yield complete("wait for a call", "wait", rank, thread, begin, end, **where)
        elif event.kind == LOSS and math.isfinite(event.loss):
            yield {
                "ph": "C", "name": "loss", "pid": process_of(rank), "tid": TRAINING, "ts": microseconds(nanoseconds(begin)),
                "args": {"loss": event.loss},
            }  # fmt: skip


def events_of_choices(record: RankRecord, offset: float) -> Iterator[TraceEvent]:
    """A mark for each decision of the hook "auto"."""
    for choice in record.choices:
        if choice.kind == CHOSEN:
            yield {
                "ph": "i", "s": "p", "name": f"auto chose {choice_text(choice)}", "cat": "choice",
                "pid": process_of(record.rank), "tid": TRAINING, "ts": microseconds(nanoseconds(max(choice.time + offset, 0.0))),
                "args": {"from step": choice.iteration},
            }  # fmt: skip


def events_of(ranks: Sequence[RankRecord]) -> Iterator[TraceEvent]:
    """Times are those since the first event of all ranks."""
    offsets = [clock(rank, ranks) for rank in ranks]
    first = min((event.begin + offset for rank, offset in zip(ranks, offsets) for event in rank.events), default=0.0)
    for rank, offset in zip(ranks, offsets):
        yield from events_of_rank(rank, offset - first)
        yield from events_of_choices(rank, offset - first)


def pieces_of_trace(ranks: Sequence[RankRecord]) -> Iterator[str]:
    """The text of the trace. The events of a long job take much more memory than their records, so none is kept."""
    yield '{"displayTimeUnit": "ms", "traceEvents": ['
    for number, event in enumerate(events_of(ranks)):
        yield f"{',' if number else ''}\n{json.dumps(event)}"
    yield "\n]}\n"


def write_trace(path: str, jobs: Sequence[Job]) -> None:
    """Throws ReportError where there is not one job to write, and OSError."""
    if len(jobs) != 1:
        raise ReportError(f"--trace {path}: it takes the folder of one gradwire-run --record, and {len(jobs)} were given")
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(pieces_of_trace(jobs[0].ranks))
