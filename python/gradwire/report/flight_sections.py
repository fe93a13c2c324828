# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What the page says of the last calls of a job, as gradwire-run --flight-dir wrote them."""

from __future__ import annotations

from collections.abc import Sequence

from .charts import Block, add_gantt
from .elements import Element, add, add_legend
from .flights import WELL, FlightCall, FlightRank, call_of_now, last_calls
from .run_sections import section
from .text import human_seconds

SHOWN_CALLS = 20  # of each rank
ENDED, UNDER_WAY, BESIDE, FAILED = "c0", "c1", "c2", "c3"  # colours
LEGEND = (
    (ENDED, "call that ended"),
    (UNDER_WAY, "call in which the rank is"),
    (BESIDE, "call under way that no thread waits for"),
    (FAILED, "call that failed"),
)
ROOM = 1.35  # the calls take so much less of the chart's length; a call that has not ended reaches to its end


def row_label(rank: FlightRank) -> str:
    return f"rank {rank.rank}" + (f": {rank.state}" if rank.state else "")


def block_of(call: FlightCall, origin: float, length: float) -> Block:
    if call.ended is None:
        colour, end, how = BESIDE if call.waited == "no" else UNDER_WAY, length, "has not ended"
    else:
        colour, end = ENDED if call.outcome in WELL else FAILED, call.ended - origin
        how = human_seconds(call.ended - call.called) + ("" if call.outcome in WELL else f", {call.outcome}")
    return Block(colour, max(call.called - origin, 0.0), end, f"{call.name} at {call.line or 'an unknown line'}: {how}")


def rows_of(ranks: Sequence[FlightRank]) -> tuple[float, list[tuple[str, list[Block]]]]:
    """The length of the chart in seconds, and a row for each rank. No rows where no rank made a call."""
    calls = [call for rank in ranks for call in rank.calls]
    if not calls:
        return 0.0, []
    # A call under way may have begun long before all others, and reaches to the left edge then.
    origin = min((call.called for call in calls if call.ended is not None), default=min(call.called for call in calls))
    length = max(ROOM * (max(max(call.called, call.ended or 0.0) for call in calls) - origin), 1e-6)
    return length, [(row_label(rank), [block_of(call, origin, length) for call in rank.calls]) for rank in ranks]


def sentences(ranks: Sequence[FlightRank]) -> list[str]:
    """In which call each rank is, or which was its last."""
    said = []
    for rank in ranks:
        if not rank.calls:
            continue
        now = call_of_now(rank)
        call = now or rank.calls[-1]
        where = f"{call.name}{f' at {call.line}' if call.line else ''}"
        if now is None:
            said.append(f"rank {rank.rank} is in no call; the last was {where}.")
        elif now.waited == "no":
            said.append(f"rank {rank.rank}: {where} is under way, and no thread waits for it.")
        else:
            said.append(f"rank {rank.rank} is in {where}.")
    return said


def add_flight_section(main: Element, folder: str, ranks: Sequence[FlightRank]) -> None:
    part = section(
        main,
        "Last calls",
        f"{folder}: the last calls of each rank, on the wall clock. gradwire-diagnose {folder} names the cause.",
        "calls",
    )
    length, rows = rows_of(last_calls(ranks, SHOWN_CALLS))
    if not rows:
        add(part, "p", "No rank has made a call.", class_="note")
        return
    add_legend(part, LEGEND)
    add_gantt(part, length, rows, human_seconds)
    for sentence in sentences(ranks):
        add(part, "p", sentence)
