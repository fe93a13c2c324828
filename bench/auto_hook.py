#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Compares the hook "auto" with each hook that it may choose, on hosts whose links have a rate.

    PYTHONPATH=build/python .venv/bin/python bench/auto_hook.py --rate none 1gbit 100mbit --accuracy rounding any

The hosts are two network namespaces of this machine, with one rank each (root is needed). For each model, rate and
accuracy, one job trains with every hook in turn, and then with "auto"; the table holds medians of the time of a step.
"""
from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RANKS = 2
HOOKS = {
    "exact": ["allreduce"],
    "rounding": ["allreduce", "bf16_compress", "int8"],
    "any": ["allreduce", "bf16_compress", "int8", "int4", "power_sgd:rank=4,start=2", "one_bit"],
}


def make_model(name):
    from torch import nn

    if name == "mlp":  # 4,203,520 parameters, 16.8 MB; little to compute for each parameter
        return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(1024, 1024), nn.ReLU()))), (16, 1024)
    # 370,816 parameters, 1.5 MB; much to compute for each parameter
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 128, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(128, 256, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    ), (8, 3, 32, 32)


def train(model, shape, hook, steps):
    """The time of each step, in seconds: the longest of all ranks."""
    import torch

    import gradwire.distributed as dist
    from gradwire.nn.parallel import DistributedDataParallel

    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(*hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        optimizer.zero_grad()
        ddp(torch.randn(shape)).square().mean().backward()
        optimizer.step()
        times.append(time.perf_counter() - begin)
    longest = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return longest.tolist()


def work(options):
    import torch

    import gradwire
    import gradwire.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group()
    out = {"hooks": {}}
    for hook in HOOKS[options["accuracy"]]:
        times = train(*make_model(options["model"]), gradwire.hooks.make(hook), options["steps"])
        out["hooks"][hook] = statistics.median(times[5:])
    state, run = gradwire.hooks.auto(options["accuracy"])
    times = train(*make_model(options["model"]), (state, run), 60 + options["steps"])
    choices = state.choices
    decided = choices[0]["iteration"] if choices else 0
    out["auto"] = {"decided": decided, "hook": state.current, "median": statistics.median(times[60:])}
    if dist.get_rank() == 0:
        print(json.dumps(out), flush=True)
    dist.destroy_process_group()


class Hosts:
    """Two namespaces with a cable, each shaped to the rate; as python/tests/two_hosts.py makes them."""

    def __init__(self, rate):
        sys.path.insert(0, str(ROOT / "python" / "tests"))
        from two_hosts import TwoHosts, why_not

        if reason := why_not():
            raise SystemExit(f"skipped: {reason}")
        self.hosts = TwoHosts()
        if rate != "none":
            for host in range(RANKS):
                subprocess.run([*self.hosts.enter(host), "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate",
                                rate, "burst", "128kb", "latency", "100ms"], check=True)

    def run(self, options):
        with tempfile.TemporaryDirectory() as folder:
            secret = pathlib.Path(folder) / "secret"
            secret.write_text("the hosts of this benchmark\n")
            secret.chmod(0o600)
            jobs = [
                subprocess.Popen(
                    [*self.hosts.enter(node), str(ROOT / "build/bin/gradwire-run"), "--no-prefix", "-n", "1",
                     "--nnodes", str(RANKS), "--node-rank", str(node), "--rendezvous", "10.84.0.1:29400",
                     "--secret-file", str(secret), sys.executable, __file__, "--worker", json.dumps(options)],
                    stdout=subprocess.PIPE, text=True)
                for node in range(RANKS)
            ]
            outputs = [job.communicate(timeout=900)[0] for job in jobs]
            if any(job.returncode for job in jobs):
                raise SystemExit("\n".join(outputs))
            return json.loads(outputs[0].splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", nargs="+", default=["none", "1gbit", "100mbit"], help="of each link, in tc's units")
    parser.add_argument("--model", nargs="+", default=["mlp", "convolution"], choices=["mlp", "convolution"])
    parser.add_argument("--accuracy", nargs="+", default=["rounding"], choices=list(HOOKS))
    parser.add_argument("--steps", type=int, default=25, help="for each hook")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return work(json.loads(arguments.worker))
    sys.path.insert(0, str(ROOT / "scripts"))
    from bench import machine

    print(f"Two hosts with one rank each, on one machine: {machine()}.\n")
    print("| model | rate | accuracy | each hook, median of a step | auto took | after step | step with auto | "
          "of the best hook's |")
    print("|---|---|---|---|---|---|---|---|")
    for rate in arguments.rate:
        hosts = Hosts(rate)
        for model in arguments.model:
            for accuracy in arguments.accuracy:
                result = hosts.run({"model": model, "accuracy": accuracy, "steps": arguments.steps})
                each = ", ".join(f"{hook} {seconds * 1e3:.1f}" for hook, seconds in result["hooks"].items())
                auto, best = result["auto"], min(result["hooks"].values())
                print(f"| {model} | {rate} | {accuracy} | {each} ms | {auto['hook']} | {auto['decided']} | "
                      f"{auto['median'] * 1e3:.1f} ms | {auto['median'] / best:.3f} |", flush=True)
        hosts.hosts.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
