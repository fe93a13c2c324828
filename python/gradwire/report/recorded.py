# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a job recorded: files rank-K.record in a folder (docs/format/recorder.md)."""

from __future__ import annotations

import math
import pathlib
import struct
from dataclasses import dataclass, field

from .lines import ReportError

MAGIC = 0x3130434552575247
STEM = b"GRWREC"  # of the magic of every version
ROWS = 2048
RECORDS = 32768
NAMES = 48
HEADER = 8192
RECORD_BYTES = 96
ROW_BYTES = 128
FILE_BYTES = HEADER + 2 * ROWS * ROW_BYTES + RECORDS * RECORD_BYTES
STEP, BUCKET, CALL, WAIT, LOSS, CHOICE, AVERAGES = 1, 2, 3, 4, 5, 6, 7
VERSION = 88  # where the version of the sums lies
NO_LOSS = 0x7FF8000000000000  # the word of a loss that was not told
ATTEMPTS = 50  # to read a file that its rank writes
KINDS = (
    "call", "barrier", "broadcast", "all_reduce", "reduce", "all_gather", "all_gather_into_tensor", "gather", "scatter",
    "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "monitored_barrier", "dup", "split",
    "allocate", "send", "recv", "recv_anysource",
)  # fmt: skip
PHASES = ("nothing", "forward", "backward", "wait", "rest")


@dataclass(frozen=True)
class Event:
    """Something that ended, from `begin` to `end` in seconds of the rank's clock."""

    kind: int  # STEP, BUCKET, CALL, WAIT, LOSS or AVERAGES: a wait for them before the last one of the step
    begin: float
    end: float
    step: int
    bucket: int | None  # None: outside of buckets
    lane: int  # -1: no lane
    thread: int
    name: str  # of the call, or of the hook
    bytes: int
    sent: int
    times: tuple[float, ...]  # step: forward, backward, wait, end of the wait; bucket: ready, returned
    loss: float = math.nan


HOOK_MEASURED, SHAPE_MEASURED, CHOSEN = 1, 2, 3


@dataclass(frozen=True)
class Choice:
    """What the hook "auto" measured or chose."""

    kind: int  # HOOK_MEASURED, SHAPE_MEASURED or CHOSEN
    iteration: int  # that was measured, or the first with the choice
    hook: str
    cap_bytes: int  # 0: DDP's own buckets
    lanes: int  # 0: DDP's own number
    cost: float  # seconds; 0 where something was chosen
    time: float = field(default=0.0, compare=False)  # seconds of the rank's clock


@dataclass(frozen=True)
class Row:
    """Sums over some steps; times in seconds."""

    first_step: int
    steps: int
    begin: float
    end: float
    whole: float
    forward: float
    backward: float
    wait: float
    rest: float
    compute: float
    communication: float
    hook_wait: float
    hook: float
    sent: int
    call_bytes: int
    loss: float | None  # the last that was told, finite or not; None: none was told


@dataclass
class RankRecord:
    file: str
    rank: int
    world: int
    pid: int
    host: str
    program: str
    opened: float  # when the rank began to write, in seconds since 1970
    wall: float  # what to add to the rank's clock for the time since 1970
    phase: str
    lost: int
    total: Row
    course: list[Row]
    hooks: list[str]
    run: int  # tells the runs of jobs apart; 0: not known
    events: list[Event] = field(default_factory=list)  # in the order in which they ended
    choices: list[Choice] = field(default_factory=list)  # in their order

    def last_moment(self) -> float:
        """When the rank last wrote, as far as the record shows, in seconds since 1970."""
        ends = [self.total.end] + [event.end for event in self.events[-1:]]
        return max(self.opened, *(end + self.wall for end in ends))

    def of_kind(self, kind: int) -> list[Event]:
        return [event for event in self.events if event.kind == kind]

    def has_buckets(self) -> bool:
        """Whether reductions of buckets were recorded: PyTorch's DistributedDataParallel tells of none, and of no hooks."""
        return self.total.hook > 0 or any(event.kind == BUCKET for event in self.events)

    def lacks_buckets(self) -> bool:
        """Whether averages were recorded, and no buckets."""
        return self.total.wait > 0 and not self.has_buckets()


def seconds(nanoseconds: int) -> float:
    return nanoseconds / 1e9


def row_of(words: tuple[int, ...]) -> Row:
    begin, end, whole, forward, backward, wait, rest, compute, communication, hook_wait, hook = map(seconds, words[2:13])
    return Row(
        words[0], words[1], begin, end, whole, forward, backward, wait, rest, compute, communication, hook_wait, hook,
        words[13], words[14], None if words[15] == NO_LOSS or not words[1] else float_of(words[15]),
    )  # fmt: skip


def float_of(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<Q", bits))[0])


def text_at(data: bytes, offset: int, length: int) -> str:
    return data[offset : offset + length].split(b"\0")[0].decode("utf-8", "replace")


def event_of(words: tuple[int, ...], hooks: list[str]) -> Event:
    kind = words[1] & 0xFF
    number = words[1] >> 32
    name = ""
    if kind == CALL:
        call = (words[1] >> 8) & 0xFF
        name = KINDS[call] if call < len(KINDS) else f"call {call}"
    elif kind == BUCKET:
        name = hooks[number - 1] if 0 < number <= len(hooks) else "hook"
    bucket = words[5] >> 32
    return Event(
        kind,
        seconds(words[2]),
        seconds(words[3]),
        words[4],
        bucket - 1 if bucket else None,
        ((words[1] >> 16) & 0xFFFF) - 1,
        words[5] & 0xFFFFFFFF,
        name,
        words[6],
        words[7],
        tuple(seconds(word) for word in words[8:12]) if kind in (STEP, BUCKET) else (),
        float_of(words[8]) if kind == LOSS else math.nan,
    )


def choice_of(words: tuple[int, ...], hooks: list[str]) -> Choice:
    number = words[1] >> 32
    name = hooks[number - 1] if 0 < number <= len(hooks) else "hook"
    return Choice((words[1] >> 8) & 0xFF, words[9], name, words[6], words[10], seconds(words[8]), seconds(words[2]))


def version_in(data: bytes) -> int:
    return int.from_bytes(data[VERSION : VERSION + 8], "little")


def bytes_of(file: pathlib.Path) -> bytes:
    """The file, with sums that belong together: its rank may change them meanwhile. The sums of a rank that was killed
    while it changed them are as it left them."""
    data = b""
    for _ in range(ATTEMPTS):
        data = file.read_bytes()
        with file.open("rb") as opened:
            opened.seek(VERSION)
            after = int.from_bytes(opened.read(8), "little")
        if version_in(data) == after and after % 2 == 0:
            break
    return data


def read_record(file: str) -> RankRecord:
    """One rank's file. Throws ReportError."""
    try:
        data = bytes_of(pathlib.Path(file))
    except OSError as error:
        raise ReportError(f"{file}: it cannot be read: {error.strerror}") from None
    magic = data[:8]
    if magic.startswith(STEM) and int.from_bytes(magic, "little") != MAGIC:
        raise ReportError(f"{file}: another version of gradwire wrote it ({magic.decode('ascii', 'replace')}); make the report with that one")
    if len(data) != FILE_BYTES:
        raise ReportError(f"{file}: it has {len(data)} bytes, and a record has {FILE_BYTES}; was it copied whole?")
    head = struct.unpack_from("<16Q", data)
    if head[0] != MAGIC:
        why = "it is no record" if any(magic) else "it is no record yet: its rank ended before it had begun to write"
        raise ReportError(f"{file}: {why}")
    hooks = [text_at(data, 512 + 64 * i, 64) for i in range(min(head[7], NAMES))]
    words = struct.Struct("<16Q")
    table, rows = head[12] & 1, min(head[13], ROWS)
    begin = HEADER + table * ROWS * ROW_BYTES
    course = [row_of(words.unpack_from(data, begin + i * ROW_BYTES)) for i in range(rows)]
    record = RankRecord(
        file,
        head[2] >> 32,
        head[2] & 0xFFFFFFFF,
        head[1],
        text_at(data, 256, 64),
        text_at(data, 320, 192),
        seconds(head[4]),
        seconds(head[4] - head[3]),
        PHASES[head[8]] if head[8] < len(PHASES) else "nothing",
        head[6],
        row_of(words.unpack_from(data, 128)),
        [row for row in course if row.steps],
        hooks,
        head[15],
    )
    whole = whole_records(data)
    record.events = [event_of(event, hooks) for event in whole if event[1] & 0xFF != CHOICE]
    record.choices = [choice_of(event, hooks) for event in whole if event[1] & 0xFF == CHOICE]
    return record


def whole_records(data: bytes) -> list[tuple[int, ...]]:
    """The records that are whole, in order."""
    words = struct.Struct("<12Q")
    begin = HEADER + 2 * ROWS * ROW_BYTES
    whole = []
    for place in range(RECORDS):
        event = words.unpack_from(data, begin + place * RECORD_BYTES)
        if event[0] and (event[0] - 1) % RECORDS == place:
            whole.append(event)
    return sorted(whole)


def has_begun(file: pathlib.Path) -> bool:
    """Whether the rank had made its file whole; a rank that is killed before leaves zeros."""
    try:
        with file.open("rb") as opened:
            return any(opened.read(8))
    except OSError:
        return True  # read_record() says why the file cannot be read


def read_folder(folder: str) -> list[RankRecord]:
    """The ranks of a job, in order. Throws ReportError."""
    files = sorted(pathlib.Path(folder).glob("rank-*.record"))
    if not files:
        raise ReportError(
            f"{folder}: it holds no rank-K.record; was the program started with gradwire-run --record {folder}?"
        )
    begun = [file for file in files if has_begun(file)] or files
    records = sorted((read_record(str(file)) for file in begun), key=lambda record: record.rank)
    # A job before, with more ranks, may have left files in the folder. Launchers of one elastic job know different numbers.
    newest = max(records, key=lambda record: record.opened)
    return [record for record in records if record.rank < newest.world or newest.run and record.run == newest.run]
