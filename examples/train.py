#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Trains a small network on several processes, with or without compressed gradients.

    build/bin/gradwire-run -n 2 .venv/bin/python examples/train.py --hook power_sgd:rank=2,start=10
    torchrun --nproc-per-node 2 examples/train.py --hook int8

(with PYTHONPATH=build/python, unless gradwire is installed). Without a launcher it trains alone, as one rank.
"""
import argparse

import torch
from torch import nn

import gradwire
import gradwire.distributed as dist
from gradwire.nn.parallel import DistributedDataParallel


def digits(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy 8 x 8 pictures of ten random shapes: data that needs no download."""
    shapes = torch.randn(10, 64, generator=torch.Generator().manual_seed(0))
    numbers = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=numbers)
    return shapes[labels] + torch.randn(count, 64, generator=numbers), labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64, help="of each rank")
    parser.add_argument("--hook", default="", help=f"one of {', '.join(gradwire.hooks.names())}, with options")
    arguments = parser.parse_args()

    dist.init_process_group()
    rank, size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
    if arguments.hook:
        model.register_comm_hook(*gradwire.hooks.make(arguments.hook))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    for step in range(arguments.steps):
        pictures, labels = digits(arguments.batch, seed=1 + step * size + rank)
        loss = nn.functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()  # when it returns, gradients are averaged over the ranks
        optimizer.step()
        if step % 50 == 0 or step == arguments.steps - 1:
            mean = loss.detach().clone()
            dist.all_reduce(mean, dist.ReduceOp.AVG)
            if rank == 0:
                print(f"step {step:4}: loss {mean.item():.4f}", flush=True)

    pictures, labels = digits(2000, seed=10_000_000 + rank)
    right = (model.module(pictures).argmax(1) == labels).float().mean()
    dist.all_reduce(right, dist.ReduceOp.AVG)
    if rank == 0:
        print(f"{100 * right.item():.1f}% right; each rank sent {model.payload_bytes():,} bytes")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
