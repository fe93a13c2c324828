# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What the page says of a job that was recorded."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from .charts import NARROW, WIDE, Bar, Curve, Labels, Piece, add_bars, add_curves, add_stack
from .choice_sections import add_choices
from .elements import Element, add, add_legend, add_table
from .last_step_sections import add_last_steps
from .matched_steps import steps_of
from .recorded import BUCKET, CALL, WAIT, Event, RankRecord, Row
from .run_sections import COLOURS, PARTS, Parts, colour_of, pieces_of, section, split_text
from .runs import Split
from .text import count_of, human_bytes, human_seconds, plain

SHOWN_RANKS = COLOURS  # in charts that have a curve or a part for each rank
SLOW = 1.2  # so many times the median's computing is named
CLOCKS_DIFFER = 60.0  # seconds, of two hosts at most, as in a diagnosis
NO_BUCKETS = "PyTorch's DistributedDataParallel tells of no buckets and hooks, and that of gradwire has none where it has one rank alone."


def add_record_sections(main: Element, folder: str, ranks: Sequence[RankRecord]) -> None:
    add_overview(main, folder, ranks)
    stepped = [rank for rank in ranks if rank.total.steps]
    if stepped:
        add_verdict(main, stepped)
        add_step_time(main, stepped)
        add_losses(main, stepped)
        add_sent(main, stepped)
    add_calls(main, ranks)
    add_hooks(main, ranks)
    add_choices(main, ranks)
    if stepped:
        add_last_steps(main, stepped)


# --- in numbers ------------------------------------------------------------------------------------------------------


def split_of(row: Row) -> Split:
    steps = max(row.steps, 1)
    return Split(row.compute / steps, row.communication / steps, row.hook_wait / steps)


def mean(total: float, row: Row) -> str:
    return human_seconds(total / row.steps) if row.steps else "-"


def facts_of(rank: RankRecord) -> list[str]:
    total = rank.total
    # As gradwire-run --watch has it: what lies between steps counts.
    seconds = total.end - total.begin
    rate = f"{total.steps / seconds:.2f}" if total.steps and seconds > 0 else "-"
    loss = "-" if total.loss is None else f"{total.loss:.4f}" if math.isfinite(total.loss) else "not finite"
    return [
        f"rank {rank.rank}", rank.host, str(total.steps), rate, loss, mean(total.forward, total),
        mean(total.backward, total), mean(total.wait, total), mean(total.rest, total),
        mean(total.hook, total) if rank.has_buckets() else "-",
        human_bytes(total.sent / total.steps) if total.steps and rank.has_buckets() else "-", ", ".join(rank.hooks) or "-",
    ]  # fmt: skip


def add_overview(main: Element, folder: str, ranks: Sequence[RankRecord]) -> None:
    first = ranks[0]
    # Hosts that join an elastic job make its world larger; what the first ones were told is no number of ranks then.
    world = first.world if all(rank.world == first.world for rank in ranks) else len(ranks)
    missing = world - len(ranks)
    part = section(
        main,
        "Job",
        f"{first.program}, {count_of(world, 'rank')}"
        + (f", of which {count_of(missing, 'rank')} left no record in {folder}" if missing > 0 else "")
        + ". Means of a step over the whole run. A step is what lies between two synchronized backward passes.",
        "job",
    )
    headings = ["", "host", "steps", "steps/s", "loss", "forward", "backward", "wait", "rest", "in hooks", "sent", "hooks"]
    add_table(part, headings, map(facts_of, ranks))
    if not any(rank.total.steps for rank in ranks):
        add(
            part,
            "p",
            "No step was recorded: the job ended before its first one, or it trains without a DistributedDataParallel that "
            "is recorded. begin_step() and end_step() mark the steps of such a program.",
            class_="note",
        )
    newest = max(ranks, key=lambda rank: rank.opened)
    for rank in ranks:
        before = newest.opened - rank.last_moment()
        if before > CLOCKS_DIFFER:
            add(
                part,
                "p",
                f"The record of rank {rank.rank} ends {human_seconds(before)} before that of rank {newest.rank} begins: it may be "
                "of an earlier job.",
                class_="note",
            )
    if any(rank.lacks_buckets() for rank in ranks):
        add(part, "p", NO_BUCKETS, class_="note")
    lost = sum(rank.lost for rank in ranks)
    if lost:
        add(part, "p", f"{count_of(lost, 'event')} could not be recorded for want of memory.", class_="note")


def parts_of(ranks: Sequence[RankRecord]) -> Parts:
    """The parts of a step's time that are told apart. Without buckets, all waiting counts as communication."""
    return PARTS if any(rank.has_buckets() for rank in ranks) else [part for part in PARTS if part[0] != "hook"]


def verdict(ranks: Sequence[RankRecord]) -> list[str]:
    """What the time goes to, and who is slow, in sentences."""
    splits = [split_of(rank.total) for rank in ranks]
    whole = sum(split.total for split in splits) or 1.0
    words = {"compute": "computing", "communication": "waiting for collectives", "hook": "the rest of averaging"}
    shares = {words[name]: sum(getattr(split, name) for split in splits) / whole for name, _ in parts_of(ranks)}
    said = ["Of a step's time " + ", ".join(f"{100 * share:.1f}% is {what}" for what, share in shares.items()) + "."]
    computes = {rank.rank: split.compute for rank, split in zip(ranks, splits)}
    median = statistics.median_low(computes.values())
    for rank in slow_ranks(ranks):
        where = where_slow(rank, ranks)
        said.append(
            f"Rank {rank.rank} computes {computes[rank.rank] / median:.2f} times as long as the median rank, and the others "
            f"wait for it{f'; most of the difference is in {where}' if where else ''}."
        )
    return said


def slow_ranks(ranks: Sequence[RankRecord]) -> list[RankRecord]:
    """The ranks that compute for longer than the median rank."""
    computes = [split_of(rank.total).compute for rank in ranks]
    median = statistics.median_low(computes)
    return [rank for rank, compute in zip(ranks, computes) if len(ranks) > 1 and 0 < SLOW * median < compute]


def where_slow(slow: RankRecord, ranks: Sequence[RankRecord]) -> str:
    """The phase in which the rank takes longest beyond the median rank; empty: no phase is longer."""
    phases: dict[str, Callable[[Row], float]] = {
        "the forward pass and the loss": lambda row: row.forward,
        "the backward pass": lambda row: row.backward,
        "the rest of the step (data, optimizer, what lies between steps)": lambda row: row.rest,
    }

    def excess(of: Callable[[Row], float]) -> float:
        return of(slow.total) / slow.total.steps - statistics.median_low([of(rank.total) / rank.total.steps for rank in ranks])

    longest = max(phases, key=lambda name: excess(phases[name]))
    return longest if excess(phases[longest]) > 0 else ""


def add_verdict(main: Element, ranks: Sequence[RankRecord]) -> None:
    part = section(main, "Why a step takes its time", name="verdict")
    for sentence in verdict(ranks):
        add(part, "p", sentence)


# --- over the run ----------------------------------------------------------------------------------------------------


def add_step_time(main: Element, ranks: Sequence[RankRecord]) -> None:
    parts = parts_of(ranks)
    hook = "Hook: the rest of averaging does (casts, compression, waking up, writing back). " if parts == PARTS else ""
    part = section(
        main,
        "Time of a step",
        "Of the thread that trains, mean over the run. Communication: a collective keeps it waiting, other ranks' "
        f"lateness included. {hook}Compute: all else, whatever goes on beside it.",
        "time",
    )
    add_legend(part, [(colour, name) for name, colour in parts])
    bars = []
    for rank in ranks:
        split = split_of(rank.total)
        bars.append(Bar(f"rank {rank.rank}", pieces_of(split, parts), split_text(split, parts)))
    add_bars(part, bars)
    shown = [rank for rank in ranks if len(rank.course) > 2][:SHOWN_RANKS]
    grid = add(part, "div", class_="grid-of-charts")
    highest = max((split_of(row).total for rank in shown for row in rank.course), default=0.0)
    for rank in shown:
        chart = add(grid, "div")
        add(chart, "h3", f"rank {rank.rank}: over the run")
        layers = [
            Curve(name, colour, [(row.first_step, getattr(split_of(row), name)) for row in rank.course])
            for name, colour in parts
        ]
        labels = Labels("step", "time of a step", plain, human_seconds)
        add_stack(chart, layers, highest, labels, WIDE if len(shown) == 1 else NARROW)


def add_course(
    part: Element, ranks: Sequence[RankRecord], value_of: Callable[[Row], float | None], labels: Labels, height: int
) -> None:
    shown = ranks[:SHOWN_RANKS]
    if len(shown) > 1:
        add_legend(part, [(colour_of(rank.rank), f"rank {rank.rank}") for rank in shown])
    curves = [
        Curve(f"rank {rank.rank}", colour_of(rank.rank), [(row.first_step, value_of(row)) for row in rank.course])
        for rank in shown
    ]
    add_curves(part, curves, labels, height=height)


def add_losses(main: Element, ranks: Sequence[RankRecord]) -> None:
    told = [rank for rank in ranks if any(row.loss is not None for row in rank.course)]
    if not told:
        return
    part = section(main, "Loss", "As the program told it: observe::tell_loss() in C++, gradwire.observe.tell_loss() in Python.", "loss")
    curves = [
        Curve(
            f"rank {rank.rank}",
            colour_of(rank.rank),
            [(last_step(row), finite(row.loss)) for row in rank.course if row.loss is not None],
        )
        for rank in told[:SHOWN_RANKS]
    ]
    if len(curves) > 1:
        add_legend(part, [(curve.colour, curve.label) for curve in curves])
    add_curves(part, curves, Labels("step", "loss", plain, plain))
    for rank in told:
        bad = [row for row in rank.course if row.loss is not None and not math.isfinite(row.loss)]
        if bad:
            add(part, "p", f"Rank {rank.rank}: the loss was not finite, the first time in {steps_text(bad[0])}.", class_="note")


def last_step(row: Row) -> int:
    return row.first_step + row.steps - 1


def finite(loss: float | None) -> float | None:
    return loss if loss is not None and math.isfinite(loss) else None


def steps_text(row: Row) -> str:
    return f"step {row.first_step}" if row.steps == 1 else f"steps {row.first_step} to {last_step(row)}"


def add_sent(main: Element, all_ranks: Sequence[RankRecord]) -> None:
    ranks = [rank for rank in all_ranks if rank.has_buckets()]
    if not ranks:
        add_sent_by_collectives(main, all_ranks)
        return
    part = section(
        main, "Bytes", "What a rank sends for buckets in a step, encoded, as the hook's algorithm is documented.", "bytes"
    )
    bars = []
    for rank in ranks:
        sent = rank.total.sent / rank.total.steps
        bars.append(Bar(f"rank {rank.rank}", [Piece(colour_of(rank.rank), sent, human_bytes(sent))], human_bytes(sent)))
    add_bars(part, bars)
    if any(len({row.sent / row.steps for row in rank.course}) > 1 for rank in ranks):
        add(part, "h3", "Over the run")
        labels = Labels("step", "bytes a step", plain, human_bytes)
        add_course(part, ranks, lambda row: row.sent / row.steps, labels, 220)


def add_sent_by_collectives(main: Element, ranks: Sequence[RankRecord]) -> None:
    """Of the steps of which all is recorded still; the sums over the run do not have it."""
    bars = []
    for rank in ranks:
        steps = steps_of(rank)
        # Calls from before the first step, and from between steps, have the number of the next step.
        calls = [event for event in rank.of_kind(CALL) if event.step in steps and event.begin >= steps[event.step].begin]
        if not calls:
            continue
        sent = sum(event.sent for event in calls) / len(steps)
        text = f"{human_bytes(sent)}, mean of the last {count_of(len(steps), 'step')}"
        bars.append(Bar(f"rank {rank.rank}", [Piece(colour_of(rank.rank), sent, human_bytes(sent))], text))
    if bars:
        note = "What the collectives and messages of a rank send in a step, as their algorithms are documented."
        add_bars(section(main, "Bytes", note, "bytes"), bars)


# --- collectives and hooks -------------------------------------------------------------------------------------------


def table_of(events: Sequence[tuple[RankRecord, Event]], where: Callable[[Event], str]) -> list[list[str]]:
    groups: dict[tuple[str, str], list[Event]] = {}
    for _, event in events:
        groups.setdefault((event.name, where(event)), []).append(event)
    rows = []
    for (name, place), found in sorted(groups.items()):
        times = [event.end - event.begin for event in found]
        rows.append(
            [
                name, place, str(len(found)), human_bytes(statistics.fmean(event.bytes for event in found)),
                human_bytes(statistics.fmean(event.sent for event in found)), human_seconds(statistics.median(times)),
                human_seconds(max(times)), human_seconds(sum(times)),
            ]
        )  # fmt: skip
    return rows


def add_calls(main: Element, ranks: Sequence[RankRecord]) -> None:
    events = [(rank, event) for rank in ranks for event in rank.of_kind(CALL)]
    if not events:
        return
    part = section(
        main,
        "Collectives",
        "All ranks together, as far back as the records go. The time is that of the call; an asynchronous call returns "
        "before it has ended, and the time that the program then waits is below.",
        "collectives",
    )
    headings = ["", "called", "calls", "bytes a call", "sent", "median", "longest", "together"]
    add_table(part, headings, table_of(events, lambda event: "by the program" if event.bucket is None else "for buckets"))
    waits = [event.end - event.begin for rank in ranks for event in rank.of_kind(WAIT) if event.bucket is None]
    if waits:
        add(
            part,
            "p",
            f"Waits for asynchronous calls: {len(waits)}, median {human_seconds(statistics.median(waits))}, "
            f"together {human_seconds(sum(waits))}.",
        )


def add_hooks(main: Element, ranks: Sequence[RankRecord]) -> None:
    events = [(rank, event) for rank in ranks for event in rank.of_kind(BUCKET)]
    if not events:
        return
    part = section(main, "Hooks", "All ranks together: from the begin of a reduction to its average.", "hooks")
    headings = ["", "bucket", "runs", "bytes", "sent", "median", "longest", "together"]
    add_table(part, headings, table_of(events, lambda event: str(event.bucket)))
