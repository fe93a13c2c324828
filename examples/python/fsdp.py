#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's FSDP over the backend "gradwire": each rank keeps a part of every parameter, of its gradient and of its optimizer
state. Nothing but the backend's name differs from a script for Gloo or NCCL.

    gradwire-run -n 2 python examples/python/fsdp.py
    torchrun --nproc-per-node 2 examples/python/fsdp.py
"""
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import gradwire  # registers the backend

assert gradwire


def make_model() -> nn.Sequential:
    torch.manual_seed(1)
    layers = [nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(3)]
    return nn.Sequential(*layers, nn.Linear(32, 1))


def main() -> None:
    if "RANK" not in os.environ:  # no launcher; torch.distributed asks for these
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29512")
    dist.init_process_group("gradwire")
    rank = dist.get_rank()

    model = make_model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)  # each layer is gathered when it is needed, and sharded again
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    for step in range(121):
        numbers = torch.Generator().manual_seed(1000 * step + rank)  # every rank draws different samples
        x = torch.randn(32, 32, generator=numbers)
        loss = nn.functional.mse_loss(model(x), torch.sin(x.sum(1, keepdim=True) / 4))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        if rank == 0 and step % 20 == 0:
            print(f"step {step:4}  loss {mean.item():.4f}", flush=True)

    local = whole = 0
    norm = torch.zeros((), dtype=torch.float64)
    for parameter in model.parameters():
        assert isinstance(parameter, DTensor)
        local += parameter.to_local().numel()
        whole += parameter.numel()
        norm += parameter.full_tensor().detach().double().square().sum()
    print(f"rank {rank} keeps {local} of {whole} parameters", flush=True)
    print(f"rank {rank} ends with parameters of norm {norm.sqrt().item()!r}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
