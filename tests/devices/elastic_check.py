#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What scripts/gpu_check.py runs on each rank of an elastic job, on a GPU or on the CPU:

    elastic_check.py DEVICE FOLDER RANKS WAY    WAY: plain, int8, zero, diloco, copies, follow

Rank 1 is killed in one step; its replacement takes part from a later step on, always the same. At the end rank 0 prints one line of JSON:
the losses of the trained model. DEVICE is cpu or cuda; all ranks share the first GPU. With diloco the ranks train separately, on a stream
of the program's, and exchange beside training. With copies each step begins with a copy of the state, and the optimizer steps before
the ranks meet once more. With follow, of three ranks, the replacement follows the others before it takes part."""
from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import sys

import torch
from torch import Tensor, nn

import gradwire
import gradwire.distributed as dist
from gradwire.distributed.optim import DilocoAverager, PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from gradwire.nn.parallel import DistributedDataParallel
from program_elastic import once, wait_for, wait_for_newcomer  # of python/tests
from same_parameters import require_same_parameters

STEPS = 16
KILL_AT = 5
WAIT_AT = 9  # the step in which the job waits for the process in the place of the killed one
CAUGHT_UP_AT = 13  # the step in which the others wait until a process that follows is as far as they are


def samples(step: int, rank: int) -> Tensor:
    """Drawn on the CPU, so that they are the same on every device."""
    return torch.randn(16, 64, generator=torch.Generator().manual_seed(100 * step + rank))


def target_of(x: Tensor) -> Tensor:
    return torch.tanh(x.sum(dim=1, keepdim=True) / 8)


def network(device: str) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 1)).to(device)


def ddp_and_optimizer(model: nn.Module, way: str, group: dist.ProcessGroup) -> tuple[nn.Module, torch.optim.Optimizer]:
    ddp = DistributedDataParallel(model, process_group=group)
    if way == "int8":
        ddp.register_comm_hook(*gradwire.hooks.make("int8:memory=ef21"))
    if way == "zero":
        return ddp, ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam, process_group=group, lr=0.003)
    return ddp, torch.optim.Adam(ddp.parameters(), lr=0.003)


@contextlib.contextmanager
def own_stream(stream: torch.cuda.Stream | None):
    """Without a stream, as on the CPU, nothing. Work before and after is in order with the stream's."""
    if stream is None:
        yield
        return
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


def main() -> None:
    device, folder, ranks, way = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    follows = way == "follow"
    if follows and (folder / f"killed-{way}").exists():
        wait_for("epoch/2")  # which it follows
    elastic = gradwire.elastic.Elastic(copy_before_step=way == "copies", follow=follows)
    followed = 0
    net = network(device)
    model, diloco = net, None
    if way == "diloco":
        diloco = DilocoAverager(net.parameters(), 4, overlap=1, hook="int8:memory=error_feedback", process_group=elastic.group)
        optimizer = PostLocalSGDOptimizer(torch.optim.Adam(net.parameters(), lr=0.003), diloco)
        elastic.add(optimizer)
    else:
        model, optimizer = ddp_and_optimizer(net, way, elastic.group)
        elastic.add(model, optimizer)
    stream = torch.cuda.Stream() if diloco is not None and device == "cuda" else None

    def step(at: gradwire.elastic.ElasticStep) -> None:
        nonlocal followed
        followed += at.follows

        def die_once() -> None:
            if at.step == KILL_AT and at.rank == 1 and once(folder / f"killed-{way}"):
                os.kill(os.getpid(), signal.SIGKILL)

        if way != "copies":
            die_once()
        if at.size == ranks - 1 and not at.follows and at.step == WAIT_AT:
            wait_for_newcomer(at.epoch, "follower/0" if follows else "change")
        if at.size == ranks - 1 and not at.follows and follows and at.step == CAUGHT_UP_AT:
            wait_for_newcomer(at.epoch)
        x = samples(at.step, at.rank)
        with own_stream(stream):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x.to(device)), target_of(x).to(device)).backward()
            optimizer.step()
        if way == "copies":
            die_once()
            dist.barrier(elastic.group)

    elastic.run(STEPS, step)
    if elastic.group.size() != ranks:
        raise AssertionError(f"{elastic.group.size()} ranks did the last step, not {ranks}")
    all_followed = torch.tensor(followed)
    dist.all_reduce(all_followed, group=elastic.group)
    if follows and all_followed.item() <= 3:
        raise AssertionError("the process in the place of the killed one did not follow the others")
    if diloco is not None:
        diloco.finish_exchanges()
    require_same_parameters(net.parameters() if diloco is None else diloco.outer_parameters(), elastic.group)
    if elastic.group.rank() == 0:
        x = samples(STEPS, 0)
        losses = [nn.functional.mse_loss(net(x.to(device)), target_of(x).to(device)).item()]
        print(json.dumps({"world": elastic.group.size(), "hook": way, "losses": losses}), flush=True)


if __name__ == "__main__":
    main()
