# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The time of an exchange of gradients between hosts, from a calibration. docs/plan.md derives the formulae.

Terms: H hosts with L ranks each, a bucket of B bytes on each rank. W is the time that a host's link takes for its bytes, U
the work of a rank that nothing hides, C its other work, which goes on while the link is busy.

    T = U + soft_maximum(W, C) + trips * latency

A link that allows bursts makes up for the time in which it was idle, as far as its burst goes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .calibration import Calibration, Curve, HookCurves, nearest_world

PLAIN = "allreduce"
SEGMENT = 1448  # bytes of payload in a TCP segment on a link with an MTU of 1500
HEADERS = 66  # of a segment: Ethernet, IP, TCP with time stamps
ETHERNET = 24  # of a frame on a real wire: preamble, checksum, gap
SHARPNESS = 2.5  # of soft_maximum()
BUFFER = 0.05  # seconds of the link that a switch can keep before it drops packets
PLAIN_PIECE = 4 << 20  # bytes of a plain bucket that go through a host and between hosts at a time


@dataclass(frozen=True)
class Link:
    """Of every host, in both directions."""

    rate: float  # bits a second; infinity: no limit
    latency: float = 0.0  # seconds, one way
    frame: int = HEADERS + ETHERNET  # bytes on the wire beside the payload of a segment
    burst: int = 0  # bytes that pass at once after a pause (tc's tbf, some clouds)

    def framed(self, payload: float) -> float:
        """The bytes that a long message takes."""
        return payload * (1 + self.frame / SEGMENT)

    def seconds(self, framed: float) -> float:
        return 8 * framed / self.rate

    def saved(self, idle: float) -> float:
        """What a link that was idle for so many seconds saves afterwards."""
        return min(idle, 8 * self.burst / self.rate)


@dataclass(frozen=True)
class Place:
    hosts: int
    ranks: int = 1  # on each host
    cores: int | None = None  # of each host; None: one for each rank
    one_machine: bool = False  # the hosts are namespaces of the calibrated machine and share its cores

    def busy(self) -> bool:
        """Whether computing leaves no core free for an exchange beside it."""
        return self.cores is None or self.cores < 2 * self.ranks


@dataclass(frozen=True)
class Exchange:
    """Seconds; what the prediction does not rest on stands in `notes`."""

    seconds: float
    link: float  # W
    work: float  # U + C: what the exchange costs a core of a rank
    notes: tuple[str, ...] = ()


def soft_maximum(one: float, other: float) -> float:
    """Near max(one, other) where one is far larger, above it where link and processor wait for each other in turn."""
    largest = max(one, other)
    if largest == 0:
        return 0.0
    return largest * float(((one / largest) ** SHARPNESS + (other / largest) ** SHARPNESS) ** (1 / SHARPNESS))


def growth(calibration: Calibration, hook: str, size: int) -> float:
    """0 where the bytes of a rank grow as 2 (N-1)/N (all-reduce), 1 where they grow as N-1 (all-gather): the kind that the
    bytes of the two most different measured worlds show."""
    most = max(calibration.between)
    few, many = (calibration.between[world][hook].sent.at(size) for world in (2, most))
    if few == 0 or most == 2:
        return 0.0
    reducing, gathering = 2 * (most - 1) / most, float(most - 1)
    return min(1.0, max(0.0, (many / few - reducing) / (gathering - reducing)))


def sent_bytes(calibration: Calibration, hook: str, size: int, hosts: int) -> float:
    """What a host sends for a bucket of `size` bytes."""
    if hosts in calibration.between:
        return calibration.between[hosts][hook].sent.at(size)
    return calibration.between[2][hook].sent.at(size) * beyond(calibration, hook, size, hosts)


def beyond(calibration: Calibration, hook: str, size: int, hosts: int) -> float:
    """How many times more a host sends than one of two."""
    kind = growth(calibration, hook, size)
    return (1 - kind) * 2 * (hosts - 1) / hosts + kind * (hosts - 1)


def link_bytes(calibration: Calibration, hook: str, size: int, hosts: int, link: Link) -> float:
    """What a host puts on its link for a bucket: what it sends in frames, or, for short messages, what was counted on a link."""
    framed = link.framed(sent_bytes(calibration, hook, size, hosts))
    known = hosts if hosts in calibration.between else 2
    counted = calibration.between[known][hook].wire
    if counted is None:
        return framed
    return max(framed, counted.at(size) * (1 if known == hosts else beyond(calibration, hook, size, hosts)))


def sharing(calibration: Calibration, hook: str, size: int, hosts: int) -> float:
    """How many times longer a link is busy because several hosts send to one at once, in messages of a whole bucket."""
    if hosts < 3 or not calibration.sharing or calibration.between[2][hook].pieces is not None:
        return 1.0
    curve = calibration.sharing[nearest_world(list(calibration.sharing), hosts)]
    sent = sent_bytes(calibration, hook, size, hosts)
    return curve.values[-1] if sent > curve.sizes[-1] else curve.at(sent)


def trips(calibration: Calibration, hook: str, size: int) -> int:
    """One-way messages that follow each other: each collective has an entry, and for long messages an offer and its answer."""
    if hook.startswith(("power_sgd", "batched_power_sgd")):
        return 9  # three collectives
    compressor = calibration.between[2][hook].pieces is not None
    return 6 if compressor and growth(calibration, hook, size) < 0.5 else 3


def measured_work(calibration: Calibration, hook: str, size: int, place: Place) -> tuple[float, float]:
    """(own, all): seconds of a rank's own work on the bucket, and of that with the engine's between hosts, without a link."""
    if place.one_machine:
        world = nearest_world(list(calibration.between), place.hosts)
        own = calibration.within[nearest_world(list(calibration.within), 2)][hook].seconds.at(size)
        # Ranks beyond the cores take turns.
        own *= max(1.0, place.hosts / calibration.cores)
        total = calibration.between[world][hook].seconds.at(size)
        return min(own, total), total
    own = calibration.within[nearest_world(list(calibration.within), 2)][hook].seconds.at(size)
    total = calibration.between[2][hook].seconds.at(size)
    own = min(own, total)
    few = calibration.between[2][hook].sent.at(size)
    more = sent_bytes(calibration, hook, size, place.hosts) / few if few > 0 else 1.0
    engine = (total - own) * more
    # All-gather: a rank encodes once and decodes N times.
    own *= 1 + growth(calibration, hook, size) * (place.hosts - 2) / 3
    return own, own + engine


def pieces_of(curves: HookCurves, size: int) -> float:
    return 1.0 if curves.pieces is None else max(1.0, curves.pieces.at(size))


def collective(calibration: Calibration, ranks: int, name: str, size: float) -> float:
    world = nearest_world(list(calibration.collectives), ranks)
    return calibration.collectives[world][name].at(size)


def exchange(calibration: Calibration, hook: str, size: int, place: Place, link: Link, pause: float = 0.0) -> Exchange:
    """One bucket of `size` bytes, `pause` seconds after the one before. Throws PlanError for a hook that was not measured."""
    calibration.require_hook(hook)
    notes = tuple(limits(calibration, hook, size, place, link))
    if place.hosts == 1:
        world = nearest_world(list(calibration.within), place.ranks)
        seconds = calibration.within[world][hook].seconds.at(size)
        return Exchange(seconds, 0.0, seconds, notes)
    curves = calibration.between[2][hook]
    own, total = measured_work(calibration, hook, size, place)
    engine = total - own
    exposed = own / pieces_of(curves, size)
    hidden = own - exposed
    if place.ranks > 1 and curves.sent.at(size) > 0:
        if hook == PLAIN:
            # Each rank sends its share; sums within the host go piece by piece beside that.
            engine /= place.ranks
            steps = [collective(calibration, place.ranks, name, size) for name in ("reduce_scatter", "all_gather")]
            first = min(1.0, PLAIN_PIECE / size)
            exposed += first * sum(steps)
            hidden += (1 - first) * sum(steps)
        else:
            exposed += sum(collective(calibration, place.ranks, name, size) for name in ("reduce", "broadcast"))
    wire = link.seconds(link_bytes(calibration, hook, size, place.hosts, link))
    wire *= sharing(calibration, hook, size, place.hosts)
    delay = trips(calibration, hook, size) * link.latency if curves.sent.at(size) > 0 else 0.0
    work = hidden + engine
    seconds = exposed + soft_maximum(wire, work) + delay
    seconds = max(exposed + work + delay, seconds - link.saved(pause + seconds - wire))
    return Exchange(seconds, wire, exposed + work, notes)


def limits(calibration: Calibration, hook: str, size: int, place: Place, link: Link) -> list[str]:
    """Where the prediction goes beyond what was calibrated, or beyond what the model holds."""
    notes = []
    curve: Curve = calibration.between[2][hook].seconds
    if not curve.covers(size):
        notes.append(f"buckets of {curve.sizes[0]} to {curve.sizes[-1]} bytes were measured")
    if place.hosts > max(calibration.between):
        notes.append(f"up to {max(calibration.between)} hosts were measured")
    known = calibration.within if place.hosts == 1 else calibration.collectives
    if place.ranks > 1 and place.ranks > max(known):
        notes.append(f"up to {max(known)} ranks on a host were measured")
    cores = calibration.cores if place.one_machine else place.cores
    ranks = place.ranks * (place.hosts if place.one_machine else 1)
    if cores is not None and ranks > cores and not (place.one_machine and place.ranks == 1):
        notes.append("more ranks than cores: they wait for each other in ways that are not modelled")
    if place.hosts > 2 and not math.isinf(link.rate):
        at_once = sent_bytes(calibration, hook, size, place.hosts) / pieces_of(calibration.between[2][hook], size)
        if 8 * at_once / link.rate > BUFFER:
            notes.append("several hosts send to one at once: a switch may drop packets, which is not modelled")
    return notes
