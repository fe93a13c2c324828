# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The last calls of each rank: files rank-K.jsonl in a folder of --flight-dir (docs/format/flight_recorder.md)."""

from __future__ import annotations

import pathlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .lines import Line, ReportError, read_lines

VERSION = 1  # of the lines
MESSAGES = ("send", "recv", "recv_anysource")
WELL = ("good", "unknown")  # how a call ends that did not fail


@dataclass(frozen=True)
class FlightCall:
    """A call of one rank; times in seconds of the wall clock."""

    name: str  # "all_reduce(1024 f32)"
    group: str
    line: str  # of the program; may be empty
    called: float
    ended: float | None  # None: the call is under way
    outcome: str
    waited: str = ""  # of a call under way: "yes": a thread waits for it, "no", or empty: not known


@dataclass
class FlightRank:
    rank: int
    world: int
    state: str  # what the launcher saw of the process, in words
    run: str  # tells the runs of jobs apart; empty: not known
    calls: list[FlightCall] = field(default_factory=list)  # in their order


def is_flight_folder(path: str) -> bool:
    folder = pathlib.Path(path)
    return any(folder.glob("rank-*.jsonl")) and not any(folder.glob("rank-*.record"))


def state_of(process: object) -> str:
    if not isinstance(process, dict):
        return ""
    if process.get("has_ended"):
        code = process.get("code")
        return f"ended by signal {code}" if process.get("by_signal") else f"exited with {code}"
    if process.get("state") in ("T", "t"):
        return "stopped"
    call = process.get("system_call")
    return f"waits in {call}()" if call else "runs" if process.get("state") == "R" else ""


def name_of(line: Line) -> str:
    """The call as a diagnosis has it, as far as it fits."""
    operation, dtype = line.text_at("operation"), line.text_at("dtype")
    parts = [f"{line.number_at('count'):.0f} {dtype}"] if dtype else []
    # A rank of -1 is none, and tag 0 is the default. Old files have no tags.
    if operation in MESSAGES and "root" in line.fields and line.count_at("root") >= 0:
        parts.append(f"rank {line.count_at('root')}")
    if "message_tag" in line.fields and line.count_at("message_tag") > 0:
        parts.append(f"tag {line.count_at('message_tag')}")
    return f"{operation}({', '.join(parts)})" if parts else operation


def call_of(line: Line, offset: float) -> FlightCall:
    ended = line.number_at("ended")
    return FlightCall(
        name_of(line),
        line.text_at("group"),
        line.text_at("line"),
        line.number_at("called") * 1e-9 + offset,
        ended * 1e-9 + offset if ended else None,
        line.text_at("outcome"),
        str(line.fields.get("waited", "")),
    )


def read_flight_rank(file: str) -> FlightRank:
    """Throws ReportError."""
    rank: FlightRank | None = None
    offset = 0.0
    for line in read_lines(file):
        kind = line.text_at("type")
        if kind == "rank":
            if line.count_at("version") != VERSION:
                raise line.fail("another version of gradwire wrote it; make the report with that one")
            offset = line.number_at("wall_offset") * 1e-9
            state, run = state_of(line.fields.get("process")), str(line.fields.get("run", line.fields.get("job", "")))
            rank = FlightRank(int(line.number_at("rank")), int(line.number_at("world")), state, run)
        elif kind == "call":
            if rank is None:
                raise line.fail("it is a call, and no line before it says whose")
            rank.calls.append(call_of(line, offset))
    if rank is None:
        raise ReportError(f"{file}: no line says which rank it is of")
    rank.calls.sort(key=lambda call: call.called)
    return rank


def read_flight_folder(folder: str) -> list[FlightRank]:
    """The ranks of the job that wrote last, in order. Throws ReportError."""
    files = sorted(pathlib.Path(folder).glob("rank-*.jsonl"), key=lambda file: file.stat().st_mtime)
    ranks = [read_flight_rank(str(file)) for file in files]
    # The folder may hold records of an earlier job with more ranks. Launchers of one elastic job know different numbers.
    if ranks and ranks[-1].world > 0:
        newest = ranks[-1]
        ranks = [rank for rank in ranks if rank.rank < newest.world or newest.run and rank.run == newest.run]
    return sorted(ranks, key=lambda rank: rank.rank)


def last_calls(ranks: Sequence[FlightRank], many: int) -> list[FlightRank]:
    """The same ranks, with the calls under way, and calls from the moment on at which each rank had at most `many` left."""
    begins = [rank.calls[-many:][0].called for rank in ranks if rank.calls]
    since = max(begins, default=0.0)
    return [
        replace(rank, calls=[call for call in rank.calls if call.ended is None or call.called >= since]) for rank in ranks
    ]


def call_of_now(rank: FlightRank) -> FlightCall | None:
    """The call that the rank is in, or else one that is under way and that no thread waits for; None: neither."""
    under_way = [call for call in rank.calls if call.ended is None]
    order = ("yes", "", "no")
    return min(under_way, key=lambda call: order.index(call.waited) if call.waited in order else 1, default=None)


def unlike_others(ranks: Sequence[FlightRank], many: int) -> list[FlightRank]:
    """At most `many` of the ranks, in their order: those first whose process and call are in a state that few share."""

    def state(rank: FlightRank) -> tuple[object, ...]:
        call = call_of_now(rank)
        return (rank.state, call.name, call.line, call.waited) if call else (rank.state,)

    shared = Counter(state(rank) for rank in ranks)
    chosen = sorted(ranks, key=lambda rank: (shared[state(rank)], rank.rank))[:many]
    return sorted(chosen, key=lambda rank: rank.rank)
