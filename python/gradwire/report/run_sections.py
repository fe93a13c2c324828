# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What the page says of char_lm's runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .charts import NARROW, WIDE, Bar, Block, Curve, Labels, Piece, add_bars, add_curves, add_gantt, add_stack
from .elements import Element, add, add_legend, add_table
from .runs import Bucket, Run, Split, Step, Timeline
from .text import count_of, human_bytes, human_seconds, loss_text, plain

COLOURS = 8  # classes c0 to c7 of the style sheet
SHOWN_TIMELINES = 8
PARTS = (("compute", "compute"), ("communication", "communication"), ("hook", "hook"))
Parts = Sequence[tuple[str, str]]  # (name, colour)


def colour_of(number: int) -> str:
    return f"c{number % COLOURS}"


def swatched(run: Run, number: int) -> Element:
    cell = Element("span", {"class": "name"})
    add(cell, "i", class_=f"swatch {colour_of(number)}")
    add(cell, "span", run.label)
    return cell


def add_run_sections(main: Element, runs: Sequence[Run]) -> None:
    add_overview(main, runs)
    logged = [run for run in runs if run.steps]
    if logged:
        add_loss(main, runs)
        add_step_time(main, runs)
        add_bytes(main, runs)
    for number, run in enumerate(runs):
        if run.timelines:
            add_timelines(main, run, number)


def section(main: Element, title: str, note: str = "", name: str = "") -> Element:
    made = add(main, "section", id=name or None)
    add(made, "h2", title)
    if note:
        add(made, "p", note, class_="note")
    return made


def legend_of_runs(parent: Element, runs: Sequence[Run]) -> None:
    if len(runs) > 1:
        add_legend(parent, [(colour_of(number), run.label) for number, run in enumerate(runs)])


def state_of(run: Run) -> str:
    done = run.steps[-1].step if run.steps else run.first_step
    return f"{done} of {run.last_step}" + ("" if run.summary else ", not ended")


def add_overview(main: Element, runs: Sequence[Run]) -> None:
    part = section(main, "Runs" if len(runs) > 1 else "Run", name="runs")
    columns = [facts_of(run) for run in runs]
    add_table(
        part,
        ["", *(swatched(run, number) for number, run in enumerate(runs))],
        [[name, *(column[name] for column in columns)] for name in columns[0]],
    )


def facts_of(run: Run) -> dict[str, str]:
    end = run.summary
    known = bool(run.steps)
    return {
        "hook": run.hook,
        "ranks": f"{run.world} on {run.backend}, {count_of(run.threads, 'thread')} each",
        "parameters": f"{run.parameters} in {run.dtype}",
        "batch": str(run.batch),
        "steps": state_of(run),
        "steps/s": f"{run.steps_per_second():.2f}" if known else "-",
        "training loss": loss_text(end.train_loss if end else run.steps[-1].loss) if known else "-",
        "held-out loss": loss_text(end.held_out_loss) if end else "-",
        "sent a step": human_bytes(run.bytes_per_step()) if known else "-",
        "compression": f"{end.compression:.2f}x" if end and end.compression else "-",
        "in hooks a step": human_seconds(end.hook_seconds) if end else "-",
        "parameters' hash": (end.parameter_hash or "ranks differ") if end else "-",
        "file": run.file,
    }


def add_curves_of_runs(
    part: Element, runs: Sequence[Run], value_of: Callable[[Step], float | None], labels: Labels, height: int = 300
) -> None:
    """What a number of the steps did over each run, under a legend of the runs."""
    legend_of_runs(part, runs)
    curves = [
        Curve(run.label, colour_of(number), [(step.step, value_of(step)) for step in run.steps])
        for number, run in enumerate(runs)
    ]
    add_curves(part, curves, labels, height=height)


def add_loss(main: Element, runs: Sequence[Run]) -> None:
    part = section(
        main,
        "Loss",
        "Nats a character, of one step's batch over all ranks; guessing costs ln of the vocabulary's size.",
        "loss",
    )
    add_curves_of_runs(part, runs, lambda step: step.loss, Labels("step", "loss", plain, plain))


def pieces_of(split: Split, parts: Parts = PARTS) -> list[Piece]:
    values = {"compute": split.compute, "communication": split.communication, "hook": split.hook}
    return [
        Piece(
            colour,
            values[name],
            f"{name}: {human_seconds(values[name])} a step, {100 * values[name] / (split.total or 1):.1f}%",
        )
        for name, colour in parts
    ]


def split_text(split: Split, parts: Parts = PARTS) -> str:
    return f"{human_seconds(split.total)} = " + " + ".join(human_seconds(getattr(split, name)) for name, _ in parts)


def add_step_time(main: Element, runs: Sequence[Run]) -> None:
    part = section(
        main,
        "Time of a step",
        "Of rank 0's training thread, mean over the run. Communication: a collective keeps it waiting, other ranks' "
        "lateness included. Hook: the rest of averaging does (casts, compression, waking up, writing back). Compute: "
        "all else, whatever goes on beside it.",
        "time",
    )
    add_legend(part, [(colour, name) for name, colour in PARTS])
    shown = [run for run in runs if run.steps]
    add_bars(part, [Bar(run.label, pieces_of(run.split()), split_text(run.split())) for run in shown])
    curves = [run for run in shown if len(run.steps) > 2]
    grid = add(part, "div", class_="grid-of-charts")
    highest = max((step.split.total for run in curves for step in run.steps), default=0.0)
    for run in curves:
        chart = add(grid, "div")
        add(chart, "h3", f"{run.label}: over the run")
        layers = [
            Curve(name, colour, [(step.step, getattr(step.split, name)) for step in run.steps])
            for name, colour in PARTS
        ]
        add_stack(
            chart,
            layers,
            highest,
            Labels("step", "time of a step", plain, human_seconds),
            WIDE if len(curves) == 1 else NARROW,
        )


def add_bytes(main: Element, runs: Sequence[Run]) -> None:
    part = section(
        main, "Bytes", "What a rank sends for gradients in a step, as the hook's algorithm is documented.", "bytes"
    )
    shown = [run for run in runs if run.steps]
    add_bars(
        part,
        [
            Bar(
                run.label,
                [Piece(colour_of(runs.index(run)), run.bytes_per_step(), human_bytes(run.bytes_per_step()))],
                human_bytes(run.bytes_per_step())
                + (
                    f", {run.summary.compression:.2f}x less than all-reduce"
                    if run.summary and run.summary.compression > 1.005
                    else ""
                ),
            )
            for run in shown
        ],
    )
    if any(len({step.bytes_per_step for step in run.steps}) > 1 for run in shown):
        add(part, "h3", "Over the run")
        labels = Labels("step", "bytes a step", plain, human_bytes)
        add_curves_of_runs(part, runs, lambda step: step.bytes_per_step, labels, height=220)


# --- the timeline of a step ------------------------------------------------------------------------------------------


def chosen(timelines: Sequence[Timeline]) -> list[Timeline]:
    """The first, the last, and some evenly between them."""
    if len(timelines) <= SHOWN_TIMELINES:
        return list(timelines)
    return [timelines[round(i * (len(timelines) - 1) / (SHOWN_TIMELINES - 1))] for i in range(SHOWN_TIMELINES)]


def add_timelines(main: Element, run: Run, number: int) -> None:
    add_timeline_details(main, run.label, run.timelines, f"buckets-{number}", "One step of rank 0. ", "optimizer")


def add_timeline_details(
    main: Element, label: str, timelines: Sequence[Timeline], name: str, whose: str = "", rest: str = "rest"
) -> None:
    """Steps with their phases and buckets, the last one open."""
    part = section(
        main,
        f"Buckets: {label}",
        whose + "A bucket is ready when its last gradient is there, waits for a lane, then its hook runs; calls of "
        "collectives lie within.",
        name,
    )
    add_legend(
        part,
        [
            ("forward", "forward"),
            ("backward", "backward"),
            ("wait", "waiting for buckets"),
            ("optimizer", rest),
            ("queued", "bucket is ready"),
            ("hook", "hook"),
            ("communication", "collective"),
        ],
    )
    shown = chosen(timelines)
    if len(shown) < len(timelines):
        add(part, "p", f"{len(shown)} of {len(timelines)} timelines are shown.", class_="note")
    for timeline in reversed(shown):
        details = add(part, "details", open="open" if timeline is shown[-1] else None)
        add(
            details,
            "summary",
            f"Step {timeline.step}: {human_seconds(timeline.seconds)}, {count_of(len(timeline.buckets), 'bucket')}",
        )
        rows = [("training thread", phases_of(timeline, rest)), *map(row_of, enumerate(timeline.buckets))]
        add_gantt(details, timeline.seconds, rows, human_seconds)


def block(colour: str, name: str, begin: float, end: float) -> Block:
    return Block(
        colour, begin, end, f"{name}: {human_seconds(end - begin)}, from {human_seconds(begin)} to {human_seconds(end)}"
    )


def phases_of(timeline: Timeline, rest: str) -> list[Block]:
    backward = timeline.backward
    computed = timeline.wait.begin if timeline.buckets else backward.end
    blocks = [
        block("forward", "forward", timeline.forward.begin, timeline.forward.end),
        block("backward", "backward", backward.begin, computed),
        block("optimizer", rest, timeline.optimizer.begin, timeline.optimizer.end),
    ]
    if timeline.buckets:
        blocks.append(block("wait", "waiting for buckets", timeline.wait.begin, timeline.wait.end))
    return blocks


def row_of(numbered: tuple[int, Bucket]) -> tuple[str, list[Block]]:
    number, bucket = numbered
    blocks = [
        block("queued", "ready, waiting for a lane", bucket.ready, max(bucket.ready, bucket.hook.begin)),
        block("hook", "hook", bucket.hook.begin, bucket.hook.end),
    ]
    blocks += [block("communication", "collective", call.begin, call.end) for call in bucket.calls]
    return f"bucket {number}: {human_bytes(bucket.bytes)}, sends {human_bytes(bucket.sent)}", blocks
