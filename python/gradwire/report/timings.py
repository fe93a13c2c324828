# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What gradwire-bench wrote with --json: every line becomes times of one or several series, all alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from .lines import Line
from .text import human_bytes


@dataclass(frozen=True)
class Times:
    """Microseconds."""

    median: float
    p10: float | None = None
    p90: float | None = None


@dataclass(frozen=True)
class Origin:
    """Where a line comes from, as `make bench` notes it."""

    command: str  # that measured it
    machine: str  # "AMD EPYC, 2 processors"
    versions: str  # of the peers
    day: str


@dataclass(frozen=True)
class Timing:
    benchmark: str  # "hooks"
    setting: str  # what all lines of a chart have in common: "shm, 2 ranks"
    subject: str  # what is measured: "top_k"
    series: str  # who is: "gradwire", "PyTorch"
    file: str
    bytes: int
    times: Times | None  # None: `missing` says why
    ratio: tuple[float, float, float] | None = None  # to gradwire's own time, with its interval
    facts: tuple[tuple[str, str], ...] = ()  # (heading, value), in this order
    missing: str = ""
    origin: Origin | None = None


def times_of(line: Line) -> Times:
    times = Times(line.number_at("median_us"), line.number_at("p10_us"), line.number_at("p90_us"))
    if times.median <= 0:
        raise line.fail(f"'median_us' of the {line.what} is not above 0")
    return times


def ratio_of(line: Line, low: str = "ratio_low", high: str = "ratio_high") -> tuple[float, float, float]:
    return line.number_at("ratio"), line.number_at(low), line.number_at(high)


def origin_of(line: Line) -> Origin | None:
    if "origin" not in line.fields:
        return None
    origin = line.inner("origin")
    return Origin(*(origin.text_at(name) for name in ("command", "machine", "versions", "day")))


def place_of(line: Line) -> str:
    return f"{line.text_at('backend')}, {line.count_at('world')} ranks"


def peer(line: Line, own: Timing, series: str) -> Timing:
    """What a peer took for the same, or why it could not."""
    same = (own.benchmark, own.setting, own.subject, series, own.file, own.bytes)
    if "none" in line.fields:
        return Timing(*same, times=None, missing=line.text_at("none"))
    return Timing(*same, times_of(line), ratio=ratio_of(line))


def read_all_reduce(line: Line) -> Iterator[Timing]:
    setting = f"{place_of(line)}, {line.text_at('dtype')} {line.text_at('op')}, {line.text_at('buffers')} buffers"
    contestants = line.inner("contestants")
    # Where ours were measured in two ways, peers are compared with the first: in place before staged.
    ours = sorted(name for name in contestants.fields if name.startswith("gradwire"))
    for name in contestants.fields:
        entry = contestants.inner(name)
        over = [f"over_{own}" for own in ours if f"over_{own}" in entry.fields]
        yield Timing(
            line.text_at("benchmark"),
            setting,
            "all_reduce",
            name,
            line.file,
            line.count_at("bytes"),
            times_of(entry),
            ratio=ratio_of(entry.inner(over[0]), "low", "high") if over else None,
            facts=(("GB/s", f"{entry.number_at('algbw_gbps'):.2f}"),),
        )


def read_collectives(line: Line) -> Iterator[Timing]:
    bandwidth = f"{line.number_at('algbw_gbps'):.2f}" if line.count_at("bytes") else "-"
    own = Timing(
        line.text_at("benchmark"),
        place_of(line),
        line.text_at("collective"),
        "gradwire",
        line.file,
        line.count_at("bytes"),
        times_of(line),
        facts=(("GB/s", bandwidth),),
    )
    yield own
    if "peers" in line.fields:
        peers = line.inner("peers")
        for name in peers.fields:
            yield peer(peers.inner(name), own, name)


def read_hooks(line: Line) -> Iterator[Timing]:
    compression, speed = line.number_or_none("compression"), line.number_or_none("pays_below_gbit")
    own = Timing(
        line.text_at("benchmark"),
        place_of(line),
        line.text_at("hook"),
        "gradwire",
        line.file,
        line.count_at("bytes"),
        times_of(line),
        facts=(
            ("sent", human_bytes(line.count_at("sent_bytes"))),
            ("compression", "-" if compression is None else f"{compression:.1f}x"),
            ("pays below", "-" if speed is None else f"{speed:.1f} Gbit/s"),
        ),
    )
    yield own
    if "pytorch" in line.fields:
        yield peer(line.inner("pytorch"), own, "PyTorch")


def read_network(line: Line) -> Iterator[Timing]:
    """The hooks of a backend; PyTorch's stand beside them, as another backend would."""
    ranks = line.count_at("ranks_per_host")
    each = f"{ranks} rank{'' if ranks == 1 else 's'} on each"
    setting = f"{line.count_at('hosts')} hosts, {each}, links of {line.text_at('rate')}"
    for timing in read_hooks(line):
        series = timing.series if timing.series == "PyTorch" else f"gradwire {line.text_at('backend')}"
        yield replace(timing, series=series, setting=setting)


def read_codecs(line: Line) -> Iterator[Timing]:
    own = Timing(
        line.text_at("benchmark"),
        "one core",
        f"{line.text_at('codec')} {line.text_at('direction')}",
        "gradwire",
        line.file,
        line.count_at("bytes"),
        times_of(line),
        facts=(
            ("encoded", human_bytes(line.count_at("encoded_bytes"))),
            ("GB/s", f"{line.number_at('gbps'):.2f}"),
            ("memcpys", f"{line.number_at('memcpys'):.2f}"),
        ),
    )
    yield own
    if "pytorch" in line.fields:
        yield peer(line.inner("pytorch"), own, "PyTorch")


def read_ddp(line: Line) -> Iterator[Timing]:
    for series, name in (("the step alone", "alone_ms"), ("with DDP", "ddp_ms")):
        yield Timing(
            line.text_at("benchmark"),
            f"{line.count_at('world')} ranks",
            line.text_at("contestant"),
            series,
            line.file,
            0,
            Times(1e3 * line.number_at(name)),
            ratio=ratio_of(line) if name == "ddp_ms" else None,
        )


READERS: dict[str, Callable[[Line], Iterator[Timing]]] = {
    "all_reduce": read_all_reduce,
    "collectives": read_collectives,
    "hooks": read_hooks,
    "network": read_network,
    "codecs": read_codecs,
    "ddp": read_ddp,
}


def read_timings(line: Line) -> list[Timing]:
    kind = line.text_at("benchmark")
    if kind not in READERS:
        raise line.fail(f"gradwire-bench has no benchmark '{kind}'; there are {', '.join(READERS)}")
    origin = origin_of(line)
    records = READERS[kind](Line(line.file, line.number, line.fields, f"{kind} record"))
    return [replace(timing, origin=origin) for timing in records]
