# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The steps that recorded ranks made together, on one clock."""

from __future__ import annotations

from collections.abc import Sequence

from .recorded import STEP, Event, RankRecord


def steps_of(rank: RankRecord) -> dict[int, Event]:
    """The steps of which every event is still there."""
    steps = {event.step: event for event in rank.of_kind(STEP)}
    oldest = rank.events[0].step if rank.events else 0
    return {step: event for step, event in steps.items() if step > oldest or step == 0}


def clock(rank: RankRecord, ranks: Sequence[RankRecord]) -> float:
    """What to add to the rank's times so that all ranks have one clock."""
    return 0.0 if all(other.host == rank.host for other in ranks) else rank.wall


def are_at_once(events: Sequence[Event]) -> bool:
    """Whether events on one clock overlap."""
    return max(event.begin for event in events) < min(event.end for event in events)


def matched_steps(ranks: Sequence[RankRecord]) -> list[list[Event]]:
    """The last steps that the ranks made together, oldest first; each has an event of each rank, on one clock.

    Steps of one number belong together, unless they were made at different times: a process that took the place of
    another counts its own steps from 0. Then the steps that were made at one moment do. Empty where there are none."""
    known = [{step: replaced(event, clock(rank, ranks)) for step, event in steps_of(rank).items()} for rank in ranks]
    if not all(known):
        return []
    common = sorted(set.intersection(*map(set, known)))
    # The clocks of two hosts may differ by more than a step.
    hosts = {rank.host for rank in ranks}
    counts = [rank.total.steps for rank in ranks]
    alike = len(hosts) > 1 and max(counts) - min(counts) <= 1
    if common and (alike or are_at_once([steps[common[-1]] for steps in known])):
        return [[steps[step] for steps in known] for step in common]
    first = min((max(steps.values(), key=lambda event: event.end) for steps in known), key=lambda event: event.end)
    moment = (first.begin + first.end) / 2
    found = [next((event.step for event in steps.values() if event.begin <= moment < event.end), None) for steps in known]
    numbers = [number for number in found if number is not None]
    if len(numbers) < len(ranks):
        return []
    matched: list[list[Event]] = []
    while all(number in steps for number, steps in zip(numbers, known)):
        matched.insert(0, [steps[number] for number, steps in zip(numbers, known)])
        numbers = [number - 1 for number in numbers]
        if not are_at_once(matched[0]):
            return matched[1:]
    return matched


def replaced(event: Event, offset: float) -> Event:
    """The same event on another clock."""
    times = tuple(time + offset if time > 0 else 0.0 for time in event.times)
    return Event(
        event.kind, event.begin + offset, event.end + offset, event.step, event.bucket, event.lane, event.thread,
        event.name, event.bytes, event.sent, times, event.loss,
    )  # fmt: skip
