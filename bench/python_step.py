#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""A training step from Python: gradwire's DDP and PyTorch's DDP over "gradwire", beside PyTorch's DDP over Gloo.

    PYTHONPATH=build/python .venv/bin/python bench/python_step.py [--steps 60]

Two processes, one compute thread each, 6.3M parameters, batch 32. Steps of the contestants take turns, so that whatever
else the machine does meets all of them; printed are medians, and medians of the ratios within a turn with 95% intervals
(bootstrap). Then what the Python layer costs: a step of a small module under DDP of one rank, less that of the module.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

WIDTH, LAYERS, CLASSES = 1024, 6, 10


def timed_turns(steps, contestants, barrier):
    times = {name: [] for name in contestants}
    for turn in range(steps + 5):
        for name, step in contestants.items():
            barrier()
            begin = time.perf_counter()
            step()
            if turn >= 5:
                times[name].append(time.perf_counter() - begin)
    return times


def worker(steps):
    import torch
    import torch.distributed as td
    from torch import nn

    import gradwire
    import gradwire.distributed as dist

    rank, size, meet = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["MEET"]
    torch.set_num_threads(1)
    td.init_process_group("gloo", store=td.FileStore(meet + "torch", size), rank=rank, world_size=size)
    over_gradwire = td.new_group(backend="gradwire")
    dist.init_process_group("shm", store=dist.FileStore(meet + "own", size), rank=rank, world_size=size)
    x, y = torch.randn(32, WIDTH), torch.randint(0, CLASSES, (32,))

    def contestant(wrap):
        torch.manual_seed(1)
        layers = [part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        model = wrap(nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def step():
            optimizer.zero_grad(set_to_none=False)
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

        return step

    torch_ddp, own_ddp = nn.parallel.DistributedDataParallel, gradwire.nn.parallel.DistributedDataParallel
    times = timed_turns(steps, {
        "alone": contestant(lambda module: module),
        "PyTorch's DDP, Gloo": contestant(lambda m: torch_ddp(m, gradient_as_bucket_view=True)),
        "PyTorch's DDP, gradwire": contestant(
            lambda m: torch_ddp(m, process_group=over_gradwire, gradient_as_bucket_view=True)),
        "gradwire's DDP": contestant(lambda m: own_ddp(m, gradient_as_bucket_view=True)),
    }, dist.barrier)

    alone = dist.new_group([0])
    if rank == 0:
        small = torch.randn(4, 8)

        def small_step(wrap):
            model = wrap(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
            return lambda: model(small).sum().backward()

        layer = timed_turns(2000, {"module": small_step(lambda m: m),
                                   "ddp": small_step(lambda m: own_ddp(m, process_group=alone))}, lambda: None)
        print(json.dumps({"times": times, "layer": layer}))
    dist.barrier()
    dist.destroy_process_group()
    td.destroy_process_group()


def interval(ratios):
    numbers = random.Random(0)
    medians = sorted(statistics.median(numbers.choices(ratios, k=len(ratios))) for _ in range(1000))
    return f"{statistics.median(ratios):.2f} [{medians[25]:.2f}, {medians[975]:.2f}]"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(options.steps)
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            subprocess.Popen([sys.executable, __file__, "--worker", "--steps", str(options.steps)],
                             env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MEET": folder + "/"},
                             stdout=subprocess.PIPE, text=True) for rank in range(2)]
        outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        sys.exit("python_step: a worker failed")
    result = json.loads(outputs[0].splitlines()[-1])
    times = result["times"]
    base = times["PyTorch's DDP, Gloo"]
    for name, own in times.items():
        ratios = [a / b for a, b in zip(base, own, strict=True)]
        print(f"{name:24} {1e3 * statistics.median(own):8.2f} ms   faster than over Gloo by {interval(ratios)}")
    layer = {name: 1e6 * statistics.median(values) for name, values in result["layer"].items()}
    print(f"the Python layer: {layer['ddp'] - layer['module']:.0f} us a step")


if __name__ == "__main__":
    main()
