# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What the programs of test_torch_programs.py share: a model, its data, and training that any number of ranks does alike."""
from __future__ import annotations

import json
import os
from typing import Any, Callable

import torch
import torch.distributed as td
from torch import nn

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
BATCH = 8


def meet(backend: str, name: str, ranks: int = SIZE) -> None:
    store = td.FileStore(f"{os.environ['MEET']}-{backend}-{name}", ranks)
    td.init_process_group(backend, store=store, rank=RANK, world_size=ranks)


def make_model(seed: int = 3, width: int = 32) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))


def train(model: Callable[[torch.Tensor], torch.Tensor], optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    """The losses of the whole batch, which is the same whatever the number of ranks: each takes its share of it."""
    ranks, losses = td.get_world_size(), []
    for step in steps:
        x = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(step))[td.get_rank()::ranks]
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        td.all_reduce(total)
        losses.append(total.item() / ranks)
    return losses


def report(results: dict[str, Any]) -> None:
    if RANK == 0:
        print(json.dumps(results), flush=True)
