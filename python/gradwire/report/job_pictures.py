# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Pictures of one recorded job: its last step, what a step's time is spent on, what the hook auto measured; and of a job
that stood still: the last calls of its ranks."""

from __future__ import annotations

import pathlib
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .charts import Axis, Block, even_ticks
from .choice_sections import choice_text, decisions_with_costs
from .elements import Element, add
from .flight_sections import LEGEND as CALLS
from .flight_sections import rows_of, sentences
from .flights import FlightRank, last_calls, unlike_others
from .last_step_sections import blocks_of, legend_of_phases
from .lines import ReportError
from .matched_steps import clock, matched_steps
from .pictures import CHARACTER, LEGEND, ROW, TITLE, WIDTH, Row, add_bars, finished, new_picture
from .record_sections import NO_BUCKETS, parts_of, slow_ranks, split_of, verdict
from .recorded import BUCKET, RankRecord
from .run_sections import block
from .text import count_of, human_seconds

if TYPE_CHECKING:
    from .page import Flight, Job

SHOWN_RANKS = 8
SHOWN_CALLS = 10  # of each rank
NOTE = 18  # height of a line of words
COLOURS = {
    "forward": "var(--forward)", "backward": "var(--backward)", "wait": "var(--wait)", "optimizer": "var(--optimizer)",
    "compute": "var(--forward)", "communication": "var(--pytorch)", "hook": "var(--other)",
    "c0": "var(--own)", "c1": "var(--pytorch)", "c2": "var(--openmpi)", "c3": "var(--other)",
}  # fmt: skip


@dataclass(frozen=True)
class JobPicture:
    name: str
    draw: Callable[[Sequence[RankRecord]], str | None]  # None: the record has nothing for the picture


def add_legend(svg: Element, entries: Sequence[tuple[str, str]], top: float) -> None:
    """(colour, words) one beside the other."""
    x = 16.0
    for colour, words in entries:
        add(svg, "rect", x=x, y=top + 3, width=12, height=12, rx=3, style=f"fill:{colour}")
        add(svg, "text", words, class_="name", x=x + 18, y=top + 13)
        x += 36 + CHARACTER * len(words)


def add_words(svg: Element, sentences: Sequence[str], top: float) -> float:
    """Sentences in as many lines as they need. Returns the height."""
    lines = [line for sentence in sentences for line in textwrap.wrap(sentence, int((WIDTH - 32) / CHARACTER) + 8)]
    for number, line in enumerate(lines):
        add(svg, "text", line, class_="value", x=16, y=round(top + NOTE * (number + 0.75), 1))
    return NOTE * len(lines)


def add_gantt(svg: Element, rows: Sequence[tuple[str, Sequence[Block]]], length: float, top: float) -> float:
    """Blocks on one scale from 0 to `length` seconds. Returns the height."""
    left = 26 + CHARACTER * max(len(label) for label, _ in rows)
    bottom = top + ROW * len(rows)
    axis = Axis([0.0, length], left, WIDTH - 24.0)
    for tick in even_ticks(0, length, 6):
        x = round(axis.place(tick), 1)
        add(svg, "line", class_="grid", x1=x, x2=x, y1=top, y2=bottom)
        add(svg, "text", human_seconds(tick), x=x, y=bottom + 16, text_anchor="middle")
    for number, (label, blocks) in enumerate(rows):
        y = top + ROW * number
        add(svg, "text", label, class_="name", x=round(left - 10, 1), y=y + 16, text_anchor="end")
        for each in blocks:
            begin, end = axis.place(max(each.begin, 0.0)), axis.place(min(each.end, length))
            place = add(svg, "rect", class_="bar", x=round(begin, 1), y=y + 4, width=round(max(end - begin, 1.0), 1),
                        height=ROW - 8, rx=2, style=f"fill:{COLOURS[each.colour]}")  # fmt: skip
            add(place, "title", each.title)
    return bottom - top + 26


def left_out(ranks: Sequence[object], shown: Sequence[object]) -> list[str]:
    """A sentence where the picture shows fewer ranks than there are."""
    more = len(ranks) - len(shown)
    return [f"{count_of(more, 'more rank')} {'is' if more == 1 else 'are'} not shown."] if more else []


def draw_step(ranks: Sequence[RankRecord]) -> str | None:
    """The last step of all ranks on one clock, with the buckets of each below its phases."""
    shown = [rank for rank in ranks if rank.total.steps][:SHOWN_RANKS]
    matched = matched_steps(shown) if shown else []
    if not matched:
        return None
    events = list(zip(shown, matched[-1]))
    begin = min(event.begin for _, event in events)
    rows: list[tuple[str, Sequence[Block]]] = []
    for rank, event in events:
        rows.append((f"rank {rank.rank}", blocks_of(rank, event, begin)))
        offset = clock(rank, shown) - begin
        buckets = [each for each in rank.of_kind(BUCKET) if each.step == event.step]
        if buckets:
            blocks = [block("hook", f"bucket {each.bucket}", each.begin + offset, each.end + offset) for each in buckets]
            rows.append(("its buckets", blocks))
    numbers = {event.step for _, event in events}
    which = f"step {numbers.pop()}" if len(numbers) == 1 else "the last step"
    svg = new_picture(f"What the job does: {which} of each rank")
    blocks = [each for _, row in rows for each in row]
    legend = legend_of_phases(shown, blocks)
    if any(each.colour == "hook" for each in blocks):
        legend.append(("hook", "bucket on its way"))
    add_legend(svg, [(COLOURS[colour], words) for colour, words in legend], TITLE)
    height = float(TITLE + LEGEND)
    height += add_gantt(svg, rows, max(event.end for _, event in events) - begin, height + 4)
    said = [NO_BUCKETS] if any(rank.lacks_buckets() for rank in shown) else []
    height += add_words(svg, said + left_out([rank for rank in ranks if rank.total.steps], shown), height)
    return finished(svg, height)


def draw_time(ranks: Sequence[RankRecord]) -> str | None:
    """What the mean step of each rank is spent on, and the sentences of the page."""
    stepped = [rank for rank in ranks if rank.total.steps]
    if not stepped:
        return None
    # The slow ones, and then the first ones.
    slow = [rank.rank for rank in slow_ranks(stepped)]
    chosen = sorted(stepped, key=lambda rank: (rank.rank not in slow, rank.rank))[:SHOWN_RANKS]
    shown = sorted(chosen, key=lambda rank: rank.rank)
    splits = [split_of(rank.total) for rank in shown]
    parts = parts_of(stepped)
    rows = []
    for rank, split in zip(shown, splits):
        begin, blocks = 0.0, []
        for part, words in parts:
            value = getattr(split, part)
            blocks.append(block(part, words, begin, begin + value))
            begin += value
        rows.append((f"rank {rank.rank}", blocks))
    svg = new_picture("Why a step takes its time: the mean step of each rank")
    add_legend(svg, [(COLOURS[part], words) for part, words in parts], TITLE)
    height = float(TITLE + LEGEND)
    height += add_gantt(svg, rows, max(split.total for split in splits), height + 4)
    height += add_words(svg, verdict(stepped) + left_out(stepped, shown), height)
    return finished(svg, height + 8)


def draw_choices(ranks: Sequence[RankRecord]) -> str | None:
    """What the hook auto measured before its first decision, and what it chose."""
    choices = next((rank.choices for rank in ranks if rank.choices), [])
    decisions = decisions_with_costs(choices)
    if not decisions or not decisions[0][1]:
        return None
    first, costs = decisions[0]
    rows = [
        Row(name, "var(--own)" if name == first.hook else "var(--soft)", cost, human_seconds(cost))
        for name, cost in costs.items()
    ]
    svg = new_picture("Would compression pay: what the hook auto measured")
    height = float(TITLE)
    height += add_bars(svg, rows, height + 4, human_seconds, "median")
    said = ["The time from the first bucket of a step to the end of the last one."]
    said += [f"Chosen from step {each.iteration} on: {choice_text(each)}." for each, _ in decisions]
    height += add_words(svg, said, height)
    return finished(svg, height + 8)


def draw_hang(ranks: Sequence[FlightRank]) -> str | None:
    """The last calls of each rank. A call that has not ended reaches to the right edge."""
    shown = unlike_others(ranks, SHOWN_RANKS)
    length, rows = rows_of(last_calls(shown, SHOWN_CALLS))
    if not rows:
        return None
    svg = new_picture("Who hangs: the last calls of each rank")
    add_legend(svg, [(COLOURS[colour], words) for colour, words in CALLS], TITLE)
    height = float(TITLE + LEGEND)
    height += add_gantt(svg, rows, length, height + 4)
    height += add_words(svg, sentences(shown) + left_out(ranks, shown), height)
    return finished(svg, height + 8)


JOB_PICTURES = (JobPicture("step", draw_step), JobPicture("time", draw_time), JobPicture("choices", draw_choices))


def write_job_pictures(folder: str, jobs: Sequence[Job], flights: Sequence[Flight]) -> None:
    """Writes FOLDER/NAME.svg for each picture of the job, and hang.svg of the last calls. Makes the folder. Throws
    ReportError where there are several jobs, and OSError."""
    if len(jobs) > 1 or len(flights) > 1:
        raise ReportError(f"--pictures {folder}: it takes one recorded job and one folder of last calls")
    drawn = {each.name: each.draw(job.ranks) for job in jobs for each in JOB_PICTURES}
    drawn |= {"hang": draw_hang(flight.ranks) for flight in flights}
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    for name, text in drawn.items():
        if text is not None:
            (pathlib.Path(folder) / f"{name}.svg").write_text(text, encoding="utf-8")
