#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Compares the hook "auto" with an exhaustive search over hooks, sizes of buckets and numbers of lanes.

    PYTHONPATH=build/python .venv/bin/python bench/auto_hook.py --page docs/hooks.md

The hosts are network namespaces of this machine, with one rank each, on links with a rate (root is needed). A job is
one model on so many hosts at one rate:

1. Every combination trains for a few steps; "auto" trains until it has decided.
2. The fastest combinations, plain averaging and "auto" train in turn, a few steps each, several times. So what the
   machine does beside them reaches all alike. The table holds medians of these steps.

The second table has jobs in which the rate changes: how many steps "auto" takes to change its choice, and its step
beside the steps of the hooks at the new rate. About nine minutes on two processors. Nothing else should run.

Where there are more hosts than processors, the models compute little, and layers between theirs wait for the time that
computing takes on a processor of one's own. So hosts share the processors for codecs and messages only.
"""
from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CAPS = {"own": None, "2 MiB": 2.0, "one": 1024.0}  # in MiB
LANES = (-1, 4)  # -1: DDP's own number, which is 2 between hosts
WARM, COUNTED = 2, 3  # steps of a combination in the search
FINALISTS = 3
TURN = 4  # steps in turn; the first one does not count
ROUNDS = (4, 24)  # at least and at most; as many as take about so long:
ROUNDS_SECONDS = 10
DECIDES = 52  # steps within which "auto" decides with three hooks
FOLLOWS = 45  # steps that a job has after the rate has changed
MARKS = ("<!-- auto: begin (bench/auto_hook.py writes what follows) -->", "<!-- auto: end -->")


# --- a rank ----------------------------------------------------------------------------------------------------------


WAITS = {"mlp": 0.004, "convolution": 0.030}  # seconds of a step: what the model computes on this machine


def waiting(layers, seconds):
    """The layers, with a wait after each: a third of `seconds` in the forward pass, the rest in the backward pass."""
    import torch

    class Wait(torch.autograd.Function):
        @staticmethod
        def forward(context, values):
            time.sleep(seconds / len(layers) / 3)
            return values.clone()

        @staticmethod
        def backward(context, gradient):
            time.sleep(seconds / len(layers) / 3 * 2)
            return gradient

    class Waiting(torch.nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, values):
            return Wait.apply(self.layer(values))

    return [Waiting(layer) for layer in layers]


def make_model(name, waits):
    """The model, and the shape of its input."""
    from torch import nn

    if name == "mlp":  # 1,051,136 parameters, 4.2 MB; little to compute for each parameter
        layers, shape = [nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(4)], [16, 512]
        head = []
    else:  # 370,816 parameters, 1.5 MB; much to compute for each parameter
        sizes = [(3, 64, 1), (64, 128, 2), (128, 256, 2)]
        layers = [nn.Sequential(nn.Conv2d(i, o, 3, padding=1, stride=s), nn.ReLU()) for i, o, s in sizes]
        head, shape = [nn.AdaptiveAvgPool2d(1), nn.Flatten()], [8, 3, 32, 32]
    if waits:
        layers, shape = waiting(layers, WAITS[name]), [1, *shape[1:]]
    return nn.Sequential(*layers, *head), shape


class Trainer:
    """A model with a hook and a shape of the reduction."""

    def __init__(self, options, hook, cap=None, lanes=-1):
        import torch

        from gradwire.nn.parallel import DistributedDataParallel

        torch.manual_seed(1)
        module, self.shape = make_model(options["model"], options["waits"])
        self.ddp = DistributedDataParallel(module, bucket_cap_mb=cap, lanes=lanes)
        self.ddp.register_comm_hook(*hook)
        self.optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)
        self.steps = 0

    def train(self, steps):
        """The time of each step on this rank, in seconds."""
        import torch

        times = []
        for _ in range(steps):
            begin = time.perf_counter()
            self.optimizer.zero_grad()
            self.ddp(torch.randn(self.shape)).square().mean().backward()
            self.optimizer.step()
            times.append(time.perf_counter() - begin)
        self.steps += steps
        return times


def longest(times):
    """The longest of all ranks, for each step."""
    import torch

    import gradwire.distributed as dist

    all_times = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(all_times, dist.ReduceOp.MAX)
    return all_times.tolist()


def in_turn(trainers):
    """The median step of each trainer, from several rounds."""
    times = {name: [] for name in trainers}
    taken = rounds = 0
    while rounds < ROUNDS[0] or (rounds < ROUNDS[1] and taken < ROUNDS_SECONDS):  # the same on all ranks
        rounds += 1
        for name, trainer in trainers.items():
            steps = longest(trainer.train(TURN))
            times[name] += steps[1:]
            taken += sum(steps)
    return {name: statistics.median(own) for name, own in times.items()}


def choice_of(state):
    shape = state.current_shape
    cap = {0: "own", 2 << 20: "2 MiB"}.get(shape["cap_bytes"], "one")
    return [state.current, cap, shape["lanes"] or -1]


def search(options):
    import gradwire

    hooks = gradwire.hooks.auto_candidates(options["accuracy"])
    combinations = [(hook, cap, lanes) for hook in hooks for cap in CAPS for lanes in LANES]
    steps, trainers = {}, {}
    for one in combinations:
        trainers[one] = Trainer(options, gradwire.hooks.make(one[0]), CAPS[one[1]], one[2])
        steps[one] = statistics.median(longest(trainers[one].train(WARM + COUNTED))[WARM:])
    state, run = gradwire.hooks.auto(options["accuracy"])
    auto = Trainer(options, (state, run))
    auto.train(DECIDES)
    decided = state.choices[-1]["iteration"] if state.choices else 0
    best = sorted(combinations, key=steps.__getitem__)[:FINALISTS]
    plain = ("allreduce", "own", -1)
    finalists = {one: trainers[one] for one in dict.fromkeys([*best, plain])}
    medians = in_turn({**finalists, "auto": auto})
    fastest = min((one for one in finalists), key=medians.__getitem__)
    return {"fastest": fastest, "best": medians[fastest], "plain": medians[plain], "auto": medians["auto"],
            "choice": choice_of(state), "decided": decided, "searched": len(combinations)}


def set_rate(rate):
    """Of this rank's host, on which this process runs."""
    import gradwire.distributed as dist

    dist.barrier()
    subprocess.run(tbf("replace", rate), check=True)
    dist.barrier()


def follow(options):
    import gradwire

    state, run = gradwire.hooks.auto(options["accuracy"])
    auto = Trainer(options, (state, run))
    auto.train(DECIDES + 12)  # and some windows of watching
    out = []
    for rate in options["rates"]:
        before, changed, known = choice_of(state), auto.steps, len(state.choices)
        set_rate(rate)
        auto.train(FOLLOWS)
        made = state.choices[known:]
        of_hooks = [choice for choice in made if not choice["shapes"]]
        last_run = list(itertools.takewhile(lambda choice: choice["hook"] == state.current, reversed(of_hooks)))
        hook = [choice["iteration"] - changed for choice in last_run[-1:]]
        shape = [choice["iteration"] - changed for choice in made if choice["shapes"]][-1:]
        hooks = {hook: Trainer(options, gradwire.hooks.make(hook))
                 for hook in gradwire.hooks.auto_candidates(options["accuracy"])}
        medians = in_turn({**hooks, "auto": auto})
        fastest = min(hooks, key=medians.__getitem__)
        out.append({"rate": rate, "before": before, "after": choice_of(state), "hook": hook, "shape": shape, "fastest": fastest,
                    "best": medians[fastest], "auto": medians["auto"]})
    return out


def work(options):
    import torch

    import gradwire.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group()
    out = follow(options) if "rates" in options else search(options)
    if dist.get_rank() == 0:
        print(json.dumps(out), flush=True)
    dist.destroy_process_group()


# --- the hosts -------------------------------------------------------------------------------------------------------


def tbf(verb, rate):
    return ["tc", "qdisc", verb, "dev", "eth0", "root", "tbf", "rate", rate, "burst", "128kb", "latency", "100ms"]


class Hosts:
    """Namespaces, each with a link of the rate; as python/tests/two_hosts.py makes them."""

    def __init__(self, count, rate):
        sys.path.insert(0, str(ROOT / "python" / "tests"))
        from two_hosts import SwitchedHosts, address_of, why_not

        if reason := why_not():
            raise SystemExit(f"skipped: {reason}")
        self.count, self.first = count, address_of(0)
        self.hosts = SwitchedHosts(count)
        # The trainers take turns, so that the connections of each are idle for longer than in a job.
        for host in range(count):
            subprocess.run([*self.hosts.enter(host), "sh", "-c", "echo 0 > /proc/sys/net/ipv4/tcp_slow_start_after_idle"],
                           check=True)
        for host in range(count) if rate != "none" else ():
            subprocess.run([*self.hosts.enter(host), *tbf("add", rate)], check=True)

    def run(self, options):
        with tempfile.TemporaryDirectory() as folder:
            secret = pathlib.Path(folder) / "secret"
            secret.write_text("the hosts of this benchmark\n")
            secret.chmod(0o600)
            jobs = [
                subprocess.Popen(
                    [*self.hosts.enter(node), str(ROOT / "build/bin/gradwire-run"), "--no-prefix", "-n", "1",
                     "--nnodes", str(self.count), "--node-rank", str(node), "--rendezvous", f"{self.first}:29400",
                     "--secret-file", str(secret), sys.executable, __file__, "--worker", json.dumps(options)],
                    stdout=subprocess.PIPE, text=True)
                for node in range(self.count)
            ]
            outputs = [job.communicate(timeout=900)[0] for job in jobs]
            if any(job.returncode for job in jobs):
                raise SystemExit("\n".join(outputs))
            return json.loads(outputs[0].splitlines()[-1])


# --- the tables ------------------------------------------------------------------------------------------------------


def text_of(choice):
    hook, cap, lanes = choice
    buckets = {"own": "own buckets", "one": "one bucket"}.get(cap, f"buckets of {cap}")
    return f"{hook}, {buckets}" + (f", {lanes} lanes" if lanes > 0 else "")


def milliseconds(seconds):
    return f"{seconds * 1e3:.1f} ms"


def table_of_search(options):
    yield "| model | hosts | computing | rate | plain | fastest of all | its step | `auto` took | after step | step with `auto` | of the fastest's | of plain's |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    for count in options.hosts:
        for rate in options.rate:
            hosts = Hosts(count, rate)
            for model in options.model:
                waits = count > os.cpu_count()
                one = hosts.run({"model": model, "accuracy": options.accuracy, "waits": waits})
                yield (f"| {model} | {count} | {'waits' if waits else 'real'} | {rate} | {milliseconds(one['plain'])} | "
                       f"{text_of(one['fastest'])} | "
                       f"{milliseconds(one['best'])} | {text_of(one['choice'])} | {one['decided']} | "
                       f"{milliseconds(one['auto'])} | {one['auto'] / one['best']:.3f} | {one['auto'] / one['plain']:.3f} |")
            hosts.hosts.close()


def table_of_changes(options):
    yield ("| model | hosts | rate becomes | `auto` had | has | hook chosen after | shape chosen after | step | "
           "of the fastest hook's | fastest hook |")
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for model in options.model:
        hosts = Hosts(2, options.changes[0])
        for one in hosts.run({"model": model, "accuracy": options.accuracy, "waits": 2 > os.cpu_count(),
                              "rates": options.changes[1:]}):
            hook, shape = (f"{steps[0]} steps" if steps else "-" for steps in (one["hook"], one["shape"]))
            yield (f"| {model} | 2 | {one['rate']} | {text_of(one['before'])} | {text_of(one['after'])} | {hook} | {shape} | "
                   f"{milliseconds(one['auto'])} | {one['auto'] / one['best']:.3f} | {one['fastest']} |")
        hosts.hosts.close()


def fill(page, lines):
    text = page.read_text()
    begin, end = (text.find(mark) for mark in MARKS)
    if begin < 0 or end < begin:
        raise SystemExit(f"{page} has no marks '{MARKS[0]}' and '{MARKS[1]}'")
    page.write_text(text[: begin + len(MARKS[0])] + "\n" + "\n".join(lines) + "\n" + text[end:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", nargs="*", default=["none", "1gbit", "100mbit"], help="of each link, in tc's units")
    parser.add_argument("--hosts", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--model", nargs="+", default=["mlp", "convolution"], choices=["mlp", "convolution"])
    parser.add_argument("--accuracy", default="rounding", choices=["exact", "rounding", "any"])
    parser.add_argument("--changes", nargs="*", default=["10gbit", "100mbit", "10gbit"],
                        help="the rates of the jobs whose rate changes; empty: no such jobs")
    parser.add_argument("--page", type=pathlib.Path, help="also write the tables between the marks of this page")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(json.loads(options.worker))
    sys.path.insert(0, str(ROOT / "scripts"))
    from bench import machine

    lines = []

    def say(line):
        print(line, flush=True)
        lines.append(line)

    say(f"One rank on each host, all on one machine: {machine()}. Accuracy `{options.accuracy}`. Medians of "
        f"{ROUNDS[0] * (TURN - 1)} to {ROUNDS[1] * (TURN - 1)} steps that were made in turn.")
    if max(options.hosts) > os.cpu_count():
        say("")
        say("Where a host has no processor of its own, computing is imitated by waiting: layers wait for a timer, so that the "
            "hosts share the processors for codecs and messages only. The waits of a step are "
            + " and ".join(f"{seconds * 1e3:.0f} ms ({model})" for model, seconds in WAITS.items()) + ".")
    say("")
    for line in table_of_search(options) if options.rate else ():
        say(line)
    say("")
    for line in table_of_changes(options) if len(options.changes) > 1 else ():
        say(line)
    if options.page:
        fill(options.page, ["", *lines, ""])
    return 0


if __name__ == "__main__":
    sys.exit(main())
