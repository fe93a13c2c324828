#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What scripts/gpu_check.py runs on each rank of an elastic job of two, on a GPU or on the CPU:

    elastic_check.py DEVICE FOLDER WAY    WAY: plain, int8, zero

Rank 1 is killed in one step; its replacement takes part from a later step on, always the same. At the end rank 0 prints one line of JSON:
the losses of the trained model. DEVICE is cpu or cuda; all ranks share the first GPU."""
from __future__ import annotations

import json
import os
import pathlib
import signal
import sys

import torch
from torch import Tensor, nn

import gradwire
import gradwire.distributed as dist
from gradwire.distributed.optim import ZeroRedundancyOptimizer
from gradwire.nn.parallel import DistributedDataParallel
from program_elastic import once, wait_for_newcomer  # of python/tests
from same_parameters import require_same_parameters

STEPS = 16
KILL_AT = 5
WAIT_AT = 9  # the step in which the job waits for the process in the place of the killed one


def samples(step: int, rank: int) -> Tensor:
    """Drawn on the CPU, so that they are the same on every device."""
    return torch.randn(16, 64, generator=torch.Generator().manual_seed(100 * step + rank))


def target_of(x: Tensor) -> Tensor:
    return torch.tanh(x.sum(dim=1, keepdim=True) / 8)


def optimizer_for(model: DistributedDataParallel, way: str, group: dist.ProcessGroup) -> torch.optim.Optimizer:
    if way == "zero":
        return ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, process_group=group, lr=0.003)
    return torch.optim.Adam(model.parameters(), lr=0.003)


def main() -> None:
    device, folder, way = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
    elastic = gradwire.elastic.Elastic()
    torch.manual_seed(1)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 1)).to(device), process_group=elastic.group)
    if way == "int8":
        model.register_comm_hook(*gradwire.hooks.make("int8:memory=ef21"))
    optimizer = optimizer_for(model, way, elastic.group)
    elastic.add(model, optimizer)

    def step(at: gradwire.elastic.ElasticStep) -> None:
        if at.step == KILL_AT and at.rank == 1 and once(folder / f"killed-{way}"):
            os.kill(os.getpid(), signal.SIGKILL)
        if at.step == WAIT_AT and at.size == 1:
            wait_for_newcomer(at.epoch)
        x = samples(at.step, at.rank)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x.to(device)), target_of(x).to(device)).backward()
        optimizer.step()

    elastic.run(STEPS, step)
    if elastic.group.size() != 2:
        raise AssertionError(f"{elastic.group.size()} ranks did the last step, not 2")
    require_same_parameters(model, elastic.group)
    if elastic.group.rank() == 0:
        x = samples(STEPS, 0)
        losses = [nn.functional.mse_loss(model.module(x.to(device)), target_of(x).to(device)).item()]
        print(json.dumps({"world": elastic.group.size(), "hook": way, "losses": losses}), flush=True)


if __name__ == "__main__":
    main()
