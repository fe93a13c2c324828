# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The time of a training step with DDP: buckets become ready during the backward pass, and their exchanges follow each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .calibration import Calibration
from .model import Exchange, Link, Place, exchange
from .units import PlanError

FLOAT = 4  # bytes


@dataclass(frozen=True)
class Work:
    """What a rank does in a step."""

    buckets: Sequence[int]  # bytes of float32 gradients, in the order in which the buckets become ready
    compute: float = 0.0  # seconds of forward and backward pass; 0: the exchanges alone
    backward: float = 2 / 3  # part of `compute`


@dataclass(frozen=True)
class Step:
    seconds: float
    link: float  # the time for which the link of a host is busy
    computing: float  # part of the step that computes the model
    notes: tuple[str, ...]


def buckets_of(parameters: int, cap: int, first: int) -> list[int]:
    """As DDP packs gradients of many small parameters: a first bucket, then buckets of `cap` bytes."""
    if first > cap:
        raise PlanError(f"the first bucket ({first} bytes) is larger than the others ({cap} bytes)")
    rest = FLOAT * parameters
    buckets: list[int] = []
    while rest > 0:
        bucket = min(rest, cap if buckets else first)
        buckets.append(bucket)
        rest -= bucket
    return buckets


def ready_times(work: Work) -> Iterator[float]:
    """Gradients become ready at an even pace during the backward pass."""
    done, whole = 0, sum(work.buckets)
    for bucket in work.buckets:
        done += bucket
        yield work.compute * (1 - work.backward + work.backward * done / whole)


def predict_step(calibration: Calibration, hook: str, work: Work, place: Place, link: Link) -> Step:
    """Throws PlanError for a hook that was not measured."""
    exchanges: list[Exchange] = []
    stolen, end = 0.0, 0.0
    for bucket, ready in zip(work.buckets, ready_times(work)):
        begin = max(end, ready + stolen)
        one = exchange(calibration, hook, bucket, place, link, pause=begin - end)
        end = begin + one.seconds
        exchanges.append(one)
        # Without a free core, what an exchange computes makes the rest of the backward pass later. (The last exchange ends
        # after it in any case.)
        if place.busy():
            stolen += one.work
    seconds = max(work.compute + stolen, end)
    notes = tuple(dict.fromkeys(note for one in exchanges for note in one.notes))
    return Step(seconds, sum(one.link for one in exchanges), work.compute / seconds if seconds > 0 else 0.0, notes)
