# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What the page says of the hook "auto": when which hook and which shape of the reduction was tried, what each cost, and
what was chosen."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from .charts import Curve, Labels, Mark, add_curves
from .elements import Element, add, add_legend, add_table
from .recorded import CHOSEN, HOOK_MEASURED, SHAPE_MEASURED, Choice, RankRecord
from .run_sections import colour_of, section
from .text import binary_bytes, count_of, human_seconds, plain

ONE_BUCKET = 1 << 40  # a cap that no bucket reaches


def shape_text(choice: Choice) -> str:
    buckets = "own buckets" if choice.cap_bytes == 0 else f"buckets of {binary_bytes(choice.cap_bytes)}"
    if choice.cap_bytes >= ONE_BUCKET:
        buckets = "one bucket"
    return buckets if choice.lanes == 0 else f"{buckets}, {count_of(choice.lanes, 'lane')}"


def choice_text(choice: Choice) -> str:
    shape = shape_text(choice)
    return choice.hook if shape == "own buckets" else f"{choice.hook} with {shape}"


def add_choices(main: Element, ranks: Sequence[RankRecord]) -> None:
    """Of the first rank that has choices in its record: all ranks choose alike."""
    found = [rank for rank in ranks if rank.choices]
    if not found:
        return
    choices = found[0].choices
    part = section(
        main,
        "What the hook auto tried and chose",
        f"From rank {found[0].rank}, as far back as its record goes; all ranks choose alike. Each point is a step, or the "
        "median of three steps once all is decided. A line down is a decision.",
        "choices",
    )
    decisions = [choice for choice in choices if choice.kind == CHOSEN]
    add_costs(part, "Hooks", HOOK_MEASURED, choices, decisions, lambda choice: choice.hook, "first to last bucket")
    add_costs(part, "Buckets and lanes", SHAPE_MEASURED, choices, decisions, shape_text, "forward pass to last bucket")
    if decisions:
        add_table(part, ["from step", "chosen", "median cost of what was measured before"], rows_of(choices))


def add_costs(
    part: Element,
    title: str,
    kind: int,
    choices: Sequence[Choice],
    decisions: Sequence[Choice],
    name_of: Callable[[Choice], str],
    what: str,
) -> None:
    """A chart of what was measured, a curve for each name, with a gap where another was tried."""
    measured = [choice for choice in choices if choice.kind == kind]
    if not measured:
        return
    names = list(dict.fromkeys(name_of(choice) for choice in measured))
    points: dict[str, list[tuple[float, float | None]]] = {name: [] for name in names}
    before = ""
    for choice in measured:
        name = name_of(choice)
        if points[name] and name != before:
            points[name].append((choice.iteration, None))
        points[name].append((choice.iteration, choice.cost))
        before = name
    add(part, "h3", title)
    add_legend(part, [(colour_of(number), name) for number, name in enumerate(names)])
    curves = [Curve(name, colour_of(number), points[name]) for number, name in enumerate(names)]
    shown = range(measured[0].iteration, measured[-1].iteration + 2)
    marks = [Mark(each.iteration, f"step {each.iteration}: {choice_text(each)}") for each in decisions if each.iteration in shown]
    add_curves(part, curves, Labels("step", what, plain, human_seconds), height=260, marks=marks)


def decisions_with_costs(choices: Sequence[Choice]) -> list[tuple[Choice, dict[str, float]]]:
    """Each decision, with the median costs of what was measured since the decision before: of hooks by their names, or
    of shapes by their texts."""
    decisions = []
    costs: dict[str, list[float]] = {}
    for choice in choices:
        if choice.kind != CHOSEN:
            name = choice.hook if choice.kind == HOOK_MEASURED else shape_text(choice)
            costs.setdefault(name, []).append(choice.cost)
            continue
        decisions.append((choice, {name: statistics.median(cost) for name, cost in costs.items()}))
        costs = {}
    return decisions


def rows_of(choices: Sequence[Choice]) -> list[list[str]]:
    rows = []
    for choice, costs in decisions_with_costs(choices):
        measured = ", ".join(f"{name} {human_seconds(cost)}" for name, cost in costs.items())
        rows.append([str(choice.iteration), choice_text(choice), measured or "-"])
    return rows
