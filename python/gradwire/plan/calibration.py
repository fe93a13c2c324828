# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What was measured on one machine, as the file that `gradwire-plan calibrate` writes. docs/plan.md describes the file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .units import PlanError

FORMAT = 1
KIND = "gradwire-plan calibration"


@dataclass(frozen=True)
class Curve:
    """A quantity by the bytes of a bucket: ascending sizes, values above 0 (of bytes: 0 or more)."""

    sizes: tuple[int, ...]
    values: tuple[float, ...]

    @staticmethod
    def of(points: Iterable[tuple[int, float]]) -> Curve:
        ordered = sorted(points)
        return Curve(tuple(size for size, _ in ordered), tuple(value for _, value in ordered))

    def covers(self, size: float) -> bool:
        return self.sizes[0] <= size <= self.sizes[-1]

    def at(self, size: float) -> float:
        """Straight lines between the sizes. Below the least size its value; above the largest in proportion to the size."""
        if size <= self.sizes[0]:
            return self.values[0]
        if size >= self.sizes[-1]:
            return self.values[-1] * size / self.sizes[-1]
        above = next(index for index, known in enumerate(self.sizes) if known >= size)
        low, high = self.sizes[above - 1], self.sizes[above]
        part = (size - low) / (high - low)
        return self.values[above - 1] * (1 - part) + self.values[above] * part


@dataclass(frozen=True)
class HookCurves:
    """A hook in one world: seconds of an exchange, the bytes that a rank sends, the bytes that a host puts on its link with
    what the engine adds, and the pieces that a bucket is cut into."""

    seconds: Curve
    sent: Curve
    wire: Curve | None  # None: not measured
    pieces: Curve | None  # None: the hook is no compressor


@dataclass(frozen=True)
class Calibration:
    version: str  # of gradwire
    processor: str
    cores: int
    day: str
    engine: str  # how the worlds between hosts were measured
    within: Mapping[int, Mapping[str, HookCurves]]  # by ranks of one host, over shared memory
    between: Mapping[int, Mapping[str, HookCurves]]  # by hosts with one rank each, without a limit of the link
    collectives: Mapping[int, Mapping[str, Curve]]  # seconds within a host, by ranks and name
    copy: Curve  # seconds of a copy in memory
    # By hosts, from 3 on: by the bytes that a host sends for a whole bucket, how many times longer than its bytes take it a
    # link is busy because several hosts send to one. Empty where this machine may make no links with a rate.
    sharing: Mapping[int, Curve]
    where: str = field(default="", compare=False)  # the file, for messages

    def hooks(self) -> list[str]:
        return list(self.between[2])

    def require_hook(self, hook: str) -> None:
        if hook not in self.between[2]:
            raise PlanError(
                f"{self.where or 'the calibration'} does not know the hook '{hook}'; it has {', '.join(self.hooks())}. "
                f"Run gradwire-plan calibrate --hook with it."
            )


def curve_to_json(curve: Curve) -> list[list[float]]:
    return [[size, value] for size, value in zip(curve.sizes, curve.values)]


def hooks_to_json(hooks: Mapping[str, HookCurves]) -> dict[str, Any]:
    return {
        name: {
            "seconds": curve_to_json(curves.seconds),
            "sent_bytes": curve_to_json(curves.sent),
            "wire_bytes": None if curves.wire is None else curve_to_json(curves.wire),
            "pieces": None if curves.pieces is None else curve_to_json(curves.pieces),
        }
        for name, curves in hooks.items()
    }


def to_json(calibration: Calibration) -> str:
    fields = {
        "kind": KIND,
        "format": FORMAT,
        "version": calibration.version,
        "processor": calibration.processor,
        "cores": calibration.cores,
        "day": calibration.day,
        "engine": calibration.engine,
        "within": {str(world): hooks_to_json(hooks) for world, hooks in calibration.within.items()},
        "between": {str(world): hooks_to_json(hooks) for world, hooks in calibration.between.items()},
        "collectives": {
            str(world): {name: curve_to_json(curve) for name, curve in curves.items()}
            for world, curves in calibration.collectives.items()
        },
        "copy": curve_to_json(calibration.copy),
        "sharing": {str(hosts): curve_to_json(curve) for hosts, curve in calibration.sharing.items()},
    }
    return json.dumps(fields, indent=1) + "\n"


class Reader:
    """Fields that are what they should be, or one sentence about the first that is not."""

    def __init__(self, where: str) -> None:
        self.where = where

    def fail(self, problem: str) -> PlanError:
        return PlanError(f"{self.where}: {problem}; run gradwire-plan calibrate again")

    def text(self, fields: Mapping[str, Any], name: str) -> str:
        if not isinstance(fields.get(name), str):
            raise self.fail(f"'{name}' is missing or no text")
        return str(fields[name])

    def table(self, fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        value = fields.get(name)
        if not isinstance(value, dict):
            raise self.fail(f"'{name}' is missing or no object")
        return value

    def worlds(self, fields: Mapping[str, Any], name: str) -> dict[int, Mapping[str, Any]]:
        table = self.table(fields, name)
        if not table or not all(world.isdecimal() and isinstance(value, dict) for world, value in table.items()):
            raise self.fail(f"'{name}' is no object by numbers of ranks")
        return {int(world): value for world, value in table.items()}

    def curve(self, value: object, name: str, least: float = 0.0) -> Curve:
        if not isinstance(value, list) or not value or not all(is_point(point, least) for point in value):
            raise self.fail(f"'{name}' is no list of pairs of a size and a value")
        sizes = [point[0] for point in value]
        if sizes != sorted(set(sizes)):
            raise self.fail(f"the sizes of '{name}' do not ascend")
        return Curve(tuple(int(size) for size in sizes), tuple(float(point[1]) for point in value))

    def hooks(self, table: Mapping[str, Any], name: str) -> dict[str, HookCurves]:
        made = {}
        for hook in table:
            fields = self.table(table, hook)
            wire, pieces = fields.get("wire_bytes"), fields.get("pieces")
            made[hook] = HookCurves(
                self.curve(fields.get("seconds"), f"{name} {hook} seconds"),
                self.curve(fields.get("sent_bytes"), f"{name} {hook} sent_bytes"),
                None if wire is None else self.curve(wire, f"{name} {hook} wire_bytes"),
                None if pieces is None else self.curve(pieces, f"{name} {hook} pieces", 1.0),
            )
        return made


def is_point(point: object, least: float) -> bool:
    return (
        isinstance(point, list)
        and len(point) == 2
        and all(isinstance(number, (int, float)) and not isinstance(number, bool) for number in point)
        and all(map(math.isfinite, point))
        and point[0] >= 1
        and point[1] >= least
    )


def from_json(text: str, where: str, version: str) -> Calibration:
    """Throws PlanError for what is no calibration, or one of another version of gradwire than `version`."""
    read = Reader(where)
    try:
        fields = json.loads(text)
    except ValueError:
        raise read.fail("it is no JSON") from None
    if not isinstance(fields, dict) or fields.get("kind") != KIND:
        raise read.fail("it is no calibration of gradwire-plan")
    if fields.get("format") != FORMAT or fields.get("version") != version:
        raise read.fail(
            f"it was made by gradwire {fields.get('version')} (format {fields.get('format')}), and this is gradwire "
            f"{version} (format {FORMAT}), whose costs may differ"
        )
    cores = fields.get("cores")
    if not isinstance(cores, int) or isinstance(cores, bool) or cores < 1:
        raise read.fail("'cores' is missing or no number from 1 on")
    between = {world: read.hooks(table, "between") for world, table in read.worlds(fields, "between").items()}
    within = {world: read.hooks(table, "within") for world, table in read.worlds(fields, "within").items()}
    if not between.get(2) or any(hooks.keys() != between[2].keys() for hooks in [*between.values(), *within.values()]):
        raise read.fail("not every number of ranks has the same hooks, or two hosts have none")
    sharing = read.table(fields, "sharing")
    if not all(hosts.isdecimal() for hosts in sharing):
        raise read.fail("'sharing' is no object by numbers of hosts")
    return Calibration(
        version,
        read.text(fields, "processor"),
        cores,
        read.text(fields, "day"),
        read.text(fields, "engine"),
        within,
        between,
        {
            world: {name: read.curve(curve, f"collectives {name}") for name, curve in table.items()}
            for world, table in read.worlds(fields, "collectives").items()
        },
        read.curve(fields.get("copy"), "copy"),
        {int(hosts): read.curve(curve, "sharing", 1.0) for hosts, curve in sharing.items()},
        where,
    )


def nearest_world(worlds: Sequence[int], wanted: int) -> int:
    """The largest of `worlds` up to `wanted`, or the least of all."""
    return max((world for world in worlds if world <= wanted), default=min(worlds))
