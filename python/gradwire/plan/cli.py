# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The command line."""

from __future__ import annotations

import argparse
import pathlib
import sys

from . import machine
from .calibrate import HOOKS, SIZES, Wanted, calibrate
from .calibration import Calibration, from_json, to_json
from .check import Grid, check
from .machine import Bench, Skipped
from .model import ETHERNET, HEADERS, Link, Place
from .step import Work, buckets_of, predict_step
from .tables import Row, check_json, check_plot, check_text, prediction_json, prediction_plot, prediction_text
from .units import (
    PlanError,
    parse_bytes,
    parse_count,
    parse_hooks,
    parse_list,
    parse_parameters,
    parse_rate,
    parse_time,
)

FILE = "gradwire-plan.json"


def say(text: str) -> None:
    print(f"gradwire-plan: {text}", file=sys.stderr, flush=True)


def read(file: str) -> Calibration:
    try:
        text = pathlib.Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise PlanError(f"{file}: it cannot be read: {reason}; make it with gradwire-plan calibrate") from None
    return from_json(text, file, machine.version())


def write(file: str, text: str) -> None:
    try:
        pathlib.Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise PlanError(f"{file}: it cannot be written: {error.strerror}") from None


def run_calibrate(options: argparse.Namespace) -> int:
    wanted = Wanted(
        parse_hooks(options.hook), parse_list(options.bytes, parse_bytes), parse_count(options.hosts), parse_count(options.rounds)
    )
    write(options.out, to_json(calibrate(Bench(options.bench), wanted, say)))
    say(f"wrote {options.out}")
    return 0


def work_of(options: argparse.Namespace) -> Work:
    compute = parse_time(options.compute)
    if options.buckets is not None:
        return Work(parse_list(options.buckets, parse_bytes), compute)
    cap, first = parse_bytes(options.bucket_cap), parse_bytes(options.first_bucket)
    return Work(buckets_of(parse_parameters(options.parameters), cap, min(first, cap)), compute)


def run_predict(options: argparse.Namespace) -> int:
    calibration = read(options.calibration)
    work = work_of(options)
    hooks = calibration.hooks() if options.hook is None else parse_hooks(options.hook)
    cores = None if options.cores is None else parse_count(options.cores)
    latency = parse_time(options.latency)
    rows = [
        Row(hosts, ranks, rate, hook, predict_step(calibration, hook, work, Place(hosts, ranks, cores), link))
        for hosts in parse_list(options.hosts, parse_count)
        for ranks in parse_list(options.ranks_per_host, parse_count)
        for rate in parse_list(options.rate, parse_rate)
        for link in [Link(rate, latency, HEADERS + ETHERNET)]
        for hook in hooks
    ]
    if options.plot:
        write(options.plot, prediction_plot(calibration, rows))
    sys.stdout.write(prediction_json(calibration, rows) if options.json else prediction_text(calibration, rows))
    return 0


def run_check(options: argparse.Namespace) -> int:
    calibration = read(options.calibration)
    grid = Grid(
        parse_list(options.hosts, parse_count),
        parse_list(options.rate, parse_rate),
        [] if options.hook is None else parse_hooks(options.hook),
        parse_list(options.bytes, parse_bytes),
        parse_time(options.longest),
        parse_count(options.rounds),
    )
    if min(grid.hosts) < 2:
        raise PlanError(f"--hosts {options.hosts}: an exchange between hosts takes at least 2")
    compared = check(Bench(options.bench), calibration, grid, say)
    if not compared:
        raise PlanError(f"every combination takes the link longer than --longest {options.longest}; nothing was measured")
    if options.plot:
        write(options.plot, check_plot(calibration, compared))
    if options.json:
        write(options.json, check_json(calibration, compared))
    sys.stdout.write(check_text(calibration, compared))
    return 0


def add_calibrate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("calibrate", help="measure this machine, which takes a minute or two")
    command.add_argument("--out", default=FILE, metavar="FILE", help=f"the calibration to write (default {FILE})")
    command.add_argument("--hook", default=",".join(HOOKS), help="hooks, as allreduce,power_sgd:rank=4 (default %(default)s)")
    command.add_argument("--bytes", default=",".join(map(str, SIZES)), help="sizes of a bucket, as 256Ki,25Mi (default %(default)s)")
    command.add_argument("--hosts", default="4", help="measure worlds of 2 to so many hosts (default 4)")
    command.add_argument("--rounds", default="3", help="more rounds are slower and more exact (default 3)")
    command.add_argument("--bench", metavar="PROGRAM", help="gradwire-bench, where it is not beside this program or in PATH")
    command.set_defaults(run=run_calibrate)


def add_predict(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("predict", help="predict steps on other hosts")
    command.add_argument("--calibration", default=FILE, metavar="FILE", help=f"(default {FILE})")
    command.add_argument("--hosts", default="2", help="numbers of hosts, as 2,4 (default 2)")
    command.add_argument("--ranks-per-host", default="1", help="ranks on each host, as 1,2 (default 1)")
    command.add_argument("--cores", help="cores of each host (default: one for each rank, and none besides)")
    command.add_argument("--rate", default="1gbit", help="of every host's link, as 100mbit,1gbit,none (default 1gbit)")
    command.add_argument("--latency", default="0", help="of the network, one way, as 50us (default 0)")
    command.add_argument("--hook", help="hooks, as allreduce,int8 (default: all of the calibration)")
    sizes = command.add_mutually_exclusive_group(required=True)
    sizes.add_argument("--parameters", help="of the model, float32, as 6.3M")
    sizes.add_argument("--buckets", help="bytes of the buckets instead, in the order in which they are ready, as 1Mi,23Mi")
    command.add_argument("--bucket-cap", default="25Mi", help="with --parameters: bytes of a bucket (default 25Mi)")
    command.add_argument("--first-bucket", default="1Mi", help="with --parameters: bytes of the first bucket (default 1Mi)")
    command.add_argument("--compute", default="0", help="forward and backward pass of a step, as 45ms (default 0: the exchanges alone)")
    command.add_argument("--json", action="store_true", help="JSON instead of tables")
    command.add_argument("--plot", metavar="FILE.svg", help="also plot steps by rate, for the most hosts and ranks")
    command.set_defaults(run=run_predict)


def add_check(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    grid = Grid()
    command = commands.add_parser(
        "check", help="compare predictions with measurements between namespaces of the calibrated machine (as root)"
    )
    command.add_argument("--calibration", default=FILE, metavar="FILE", help=f"(default {FILE})")
    command.add_argument("--hosts", default=",".join(map(str, grid.hosts)), help="(default %(default)s)")
    command.add_argument("--rate", default="100mbit,300mbit,1gbit", help="of every host's link (default %(default)s)")
    command.add_argument("--hook", help="hooks (default: all of the calibration)")
    command.add_argument("--bytes", default="256Ki,1Mi,4Mi,25Mi", help="sizes of a bucket (default %(default)s)")
    command.add_argument("--longest", default="400ms", help="leave out a combination whose plain bucket takes the link longer (default %(default)s)")
    command.add_argument("--rounds", default=str(grid.rounds), help="more rounds are slower and more exact (default %(default)s)")
    command.add_argument("--bench", metavar="PROGRAM", help="gradwire-bench, where it is not beside this program or in PATH")
    command.add_argument("--json", metavar="FILE", help="also write the comparison as JSON")
    command.add_argument("--plot", metavar="FILE.svg", help="also plot predictions over measurements")
    command.set_defaults(run=run_check)


def main(arguments: list[str] | None = None) -> int:
    """Does what `arguments` say (default: those of the process). Returns the exit code: 2 for a wrong input, 77 where the
    machine cannot do what was asked."""
    parser = argparse.ArgumentParser(
        prog="gradwire-plan",
        description="What a training step would cost on other hosts, with each hook: a short calibration on one machine, "
        "and predictions from it. docs/plan.md states the model, and where it does not reach.",
    )
    parser.add_argument("--version", action="version", version=f"gradwire-plan {machine.version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_calibrate(commands)
    add_predict(commands)
    add_check(commands)
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except PlanError as error:
        print(f"gradwire-plan: {error}", file=sys.stderr)
        return 2
    except Skipped as reason:
        print(f"gradwire-plan: skipped: {reason}", file=sys.stderr)
        return machine.NO_NAMESPACES
