# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What the page says of the last steps of a job that was recorded."""

from __future__ import annotations

from collections.abc import Sequence

from .charts import Block, add_gantt
from .elements import Element, add, add_legend
from .lines import Span
from .matched_steps import matched_steps, steps_of
from .recorded import AVERAGES, BUCKET, CALL, Event, RankRecord
from .run_sections import COLOURS, add_timeline_details, block, section
from .runs import Bucket, Timeline
from .text import human_seconds

SHOWN_RANKS = COLOURS  # in charts that have a part for each rank
SHOWN_STEPS = 4


def legend_of_phases(ranks: Sequence[RankRecord], blocks: Sequence[Block]) -> list[tuple[str, str]]:
    """(colour, name) of each phase of these blocks, for a legend."""
    wait = "waiting for buckets" if any(rank.has_buckets() for rank in ranks) else "waiting for averages"
    phases = (("forward", "forward"), ("backward", "backward"), ("wait", wait), ("optimizer", "rest"))
    colours = {each.colour for each in blocks}
    return [(colour, name) for colour, name in phases if colour in colours]


def blocks_of(rank: RankRecord, event: Event, origin: float) -> list[Block]:
    forward, backward, wait, end = event.times
    wait_name = "waiting for buckets" if rank.has_buckets() else "waiting for averages"
    limits = (
        ("forward", "forward", forward, backward or event.end),
        ("backward", "backward", backward, wait or event.end),
        ("wait", wait_name, wait, end),
        ("optimizer", "rest", end, event.end),
    )
    blocks = [block(colour, name, begin - origin, until - origin) for colour, name, begin, until in limits if begin > 0]
    # Over the backward pass, in which they lie.
    earlier = [each for each in rank.of_kind(AVERAGES) if each.step == event.step]
    return blocks + [block("wait", wait_name, each.begin - origin, each.end - origin) for each in earlier]


def timeline_of(rank: RankRecord, event: Event) -> Timeline:
    origin = event.begin

    def span(begin: float, end: float) -> Span:
        return Span(begin - origin, max(begin, end) - origin) if begin > 0 else Span(0, 0)

    def is_within(call: Event, bucket: Event) -> bool:
        # Two DistributedDataParallel have buckets of one number, and lanes of one number with threads of their own.
        elsewhere = bucket.lane >= 0 and call.thread != bucket.thread
        return call.bucket == bucket.bucket and not elsewhere and bucket.begin <= call.begin <= bucket.end

    forward, backward, wait, end = event.times
    calls = [each for each in rank.of_kind(CALL) if each.step == event.step and each.bucket is not None]
    buckets = [
        Bucket(
            each.bytes,
            each.sent,
            each.times[0] - origin,
            span(each.begin, each.end),
            [span(call.begin, call.end) for call in calls if is_within(call, each)],
        )
        for each in rank.of_kind(BUCKET)
        if each.step == event.step
    ]
    return Timeline(
        event.step,
        event.end - event.begin,
        span(forward, backward or event.end),
        span(backward, end or event.end),
        span(wait, end),
        span(end, event.end),
        sorted(buckets, key=lambda bucket: bucket.ready),
    )


def add_last_steps(main: Element, ranks: Sequence[RankRecord]) -> None:
    matched = matched_steps(ranks)
    part = section(main, "Last step", "All ranks on one clock, from the first forward pass.", "last-step")
    if not matched:
        add(part, "p", "Left out: the records have no step that all ranks made at one moment.", class_="note")
        return
    last = matched[-1]
    shown = list(zip(ranks, last))[: 2 * SHOWN_RANKS]
    begin = min(event.begin for _, event in shown)
    end = max(event.end for _, event in shown)
    rows = [(f"rank {rank.rank}", blocks_of(rank, event, begin)) for rank, event in shown]
    add_legend(part, legend_of_phases(ranks, [each for _, blocks in rows for each in blocks]))
    add_gantt(part, end - begin, rows, human_seconds)
    add(part, "p", numbers_text(ranks, last), class_="note")
    for at, rank in list(enumerate(ranks))[:SHOWN_RANKS]:
        if not rank.has_buckets():
            continue
        own = steps_of(rank)
        timelines = [timeline_of(rank, own[events[at].step]) for events in matched[-SHOWN_STEPS:]]
        add_timeline_details(main, f"rank {rank.rank}", timelines, f"buckets-{rank.rank}")


def numbers_text(ranks: Sequence[RankRecord], events: Sequence[Event]) -> str:
    if len({event.step for event in events}) == 1:
        return f"Step {events[0].step}."
    numbers = ", ".join(f"{event.step} of rank {rank.rank}" for rank, event in zip(ranks, events))
    return f"Step {numbers}: matched by time, because each process counts its own steps, and not all began together."
