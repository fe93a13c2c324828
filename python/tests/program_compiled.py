# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Two ranks: torch.compile of DDP, of FSDP, and of functions that call collectives."""
from __future__ import annotations

import sys

import torch
import torch.distributed as td
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.fsdp import fully_shard
from torch_programs import RANK, SIZE, make_model, meet, report, train

import gradwire  # noqa: F401

COMPILER = sys.argv[1]
RATES = {"wide": 0.002, "narrow": 0.05}


def collectives(tensor: torch.Tensor, group: td.ProcessGroup) -> tuple[torch.Tensor, ...]:
    twice = tensor * 2
    return (functional.all_reduce(twice, "sum", group) + 1,
            functional.all_gather_tensor(twice, 0, group) + 1,
            functional.reduce_scatter_tensor(twice, "sum", 0, group) + 1,
            functional.all_to_all_single(twice, [2, 2], [2, 2], group) + 1,
            functional.broadcast(twice, 1, group) + 1)


def in_place(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor * 2
    td.all_reduce(tensor)
    return tensor + 1


def check_collectives() -> None:
    tensor = torch.arange(4.0) + 10 * RANK
    everyone = torch.stack([torch.arange(4.0) + 10 * rank for rank in range(SIZE)]) * 2 + 1
    total = everyone.sum(0) - 1
    here = slice(2 * RANK, 2 * RANK + 2)
    expected = (total, everyone.flatten(), total[here], everyone[:, here].flatten(), everyone[1])
    compiled = torch.compile(collectives, backend=COMPILER, fullgraph=True)
    for found, right in zip(compiled(tensor, td.group.WORLD), expected, strict=True):
        assert torch.equal(found, right), (found, right)
    assert torch.equal(torch.compile(in_place, backend=COMPILER)(tensor), total)


results: dict[str, dict[str, list[float]]] = {}
for backend in ("gloo", "gradwire"):
    meet(backend, "compiled")
    losses = results[backend] = {}
    if backend == "gradwire":
        check_collectives()
    # Two buckets (of 1 MiB, the least that the compiler takes), so that it has to cut the graph between them.
    wrapped = nn.parallel.DistributedDataParallel(make_model(width=640), bucket_cap_mb=1)
    optimizer = torch.optim.SGD(wrapped.parameters(), RATES["wide"])
    losses["compiled ddp"] = train(torch.compile(wrapped, backend=COMPILER), optimizer, range(6))
    inner = make_model()
    wrapped = nn.parallel.DistributedDataParallel(torch.compile(inner, backend=COMPILER))
    losses["ddp of a compiled model"] = train(wrapped, torch.optim.SGD(inner.parameters(), RATES["narrow"]), range(6))
    model = fully_shard(make_model())
    optimizer = torch.optim.SGD(model.parameters(), RATES["narrow"])
    losses["compiled fsdp"] = train(torch.compile(model, backend=COMPILER), optimizer, range(6))
    torch._dynamo.reset()
    for name, model in (("wide", make_model(width=640)), ("narrow", make_model())):
        plain = nn.parallel.DistributedDataParallel(model)
        losses[name] = train(plain, torch.optim.SGD(plain.parameters(), RATES[name]), range(6))
    td.destroy_process_group()
report(results)
