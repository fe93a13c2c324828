#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What scripts/gpu_check.py runs on each rank of an elastic job of two, on a GPU or on the CPU:

    elastic_check.py DEVICE FOLDER WAY    WAY: plain, int8, zero

Rank 1 is killed in one step; its replacement takes part from a later step on, always the same. At the end rank 0 prints one line of JSON:
the losses of the trained model. DEVICE is cpu or cuda; all ranks share the first GPU."""
from __future__ import annotations

import datetime
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


def is_first(mark: pathlib.Path) -> bool:
    try:
        mark.touch(exist_ok=False)
        return True
    except FileExistsError:
        return False


def wait_for_newcomer(epoch: int) -> None:
    """Waits until the coordinator has decided that this epoch ends."""
    store = dist.PrefixStore("elastic", dist.FileStore(os.environ["GRADWIRE_ELASTIC"]))
    store.wait([f"epoch/{epoch}/change"], datetime.timedelta(seconds=60))


def require_same_parameters(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Raises unless two ranks are there at the end, with the same bits: the newcomer got all of the state."""
    mine = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).cpu()
    all_of_them = [torch.empty_like(mine) for _ in range(group.size())]
    dist.all_gather(all_of_them, mine, group)
    if group.size() != 2 or not torch.equal(*all_of_them):
        raise AssertionError(f"{group.size()} ranks ended with parameters that differ by {(all_of_them[0] - all_of_them[-1]).abs().max().item()}")


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
        if at.step == KILL_AT and at.rank == 1 and is_first(folder / f"killed-{way}"):
            os.kill(os.getpid(), signal.SIGKILL)
        if at.step == WAIT_AT and at.size == 1:
            wait_for_newcomer(at.epoch)
        x = samples(at.step, at.rank)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x.to(device)), target_of(x).to(device)).backward()
        optimizer.step()

    elastic.run(STEPS, step)
    require_same_parameters(model, elastic.group)
    if elastic.group.rank() == 0:
        x = samples(STEPS, 0)
        losses = [nn.functional.mse_loss(model.module(x.to(device)), target_of(x).to(device)).item()]
        print(json.dumps({"world": elastic.group.size(), "hook": way, "losses": losses}), flush=True)


if __name__ == "__main__":
    main()
