#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What scripts/gpu_check.py runs on each rank for the Python package, on a GPU or on the CPU. Rank 0 prints one line of JSON for each result.

    python_check.py train DEVICE BACKEND STEPS [WAY...]   the losses of a small model, for each way to train (training_ways.py; default: all)
    python_check.py collectives DEVICE BACKEND            collectives, against the values that they must give
    python_check.py graph DEVICE BACKEND STEPS            the losses of steps that a CUDA graph repeats, against those of ordinary steps
    python_check.py speed DEVICE BACKEND PEER             steps with gradwire's DDP over BACKEND, in turn with PyTorch's over its backend PEER

DEVICE is cpu or cuda; all ranks share the first GPU.
"""
from __future__ import annotations

import contextlib
import json
import statistics
import sys
import tempfile
import time
from typing import Any, Callable, Iterator

import torch
import torch.distributed as td
from torch import Tensor, nn

from gradwire import distributed as dist
from gradwire.distributed import nn as differentiable
from gradwire.nn.parallel import DistributedDataParallel
from same_parameters import require_same_parameters
from training_ways import APART, WAYS, Way


def report(line: dict[str, Any]) -> None:
    if dist.get_rank() == 0:
        print(json.dumps({"world": dist.get_world_size(), **line}), flush=True)


def join(device: str, backend: str) -> torch.device:
    chosen = torch.device("cuda", 0) if device == "cuda" else torch.device("cpu")
    dist.init_process_group(backend, device_id=chosen if backend == "nccl" else None)
    return chosen


@contextlib.contextmanager
def torch_group(backend: str) -> Iterator[None]:
    """PyTorch's default group of the ranks of ours; they meet in a folder of rank 0."""
    with tempfile.TemporaryDirectory() as folder:
        place = [folder]
        dist.broadcast_object_list(place)
        store = td.FileStore(f"{place[0]}/store", dist.get_world_size())
        td.init_process_group(backend, store=store, rank=dist.get_rank(), world_size=dist.get_world_size())
        yield
        td.destroy_process_group()
        dist.barrier()  # rank 0 removes the folder


class Training:
    """A small model and its data. All random numbers are drawn on the CPU, so that they are the same on every device."""

    def __init__(self, way: Way, device: torch.device) -> None:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(64, 2048), nn.Tanh(), nn.Linear(2048, 16))  # beyond what is staged as a small call
        self.truth = torch.randn(64, 16)
        self.model, self.optimizer = way(model.to(device))
        self.x = torch.zeros(32, 64, device=device)
        self.target = torch.zeros(32, 16, device=device)
        torch.manual_seed(100 + dist.get_rank())

    def next_batch(self) -> None:
        x = torch.randn(32, 64)
        self.x.copy_(x)
        self.target.copy_(torch.tanh(x @ self.truth / 8))

    def step(self) -> Tensor:
        self.model.zero_grad()
        loss = nn.functional.mse_loss(self.model(self.x).float(), self.target)
        loss.backward()
        if self.optimizer is not None:
            self.optimizer.step()
        return loss


def losses_of(way: Way, device: torch.device, steps: int, *, are_alike: bool = True) -> list[float]:
    """The losses of rank 0. Ranks that end with other parameters are an error where `are_alike`."""
    training = Training(way, device)
    losses = []
    for _ in range(steps):
        training.next_batch()
        losses.append(training.step().item())
    if are_alike:
        require_same_parameters(training.model.parameters())
    return losses


def train(device: str, backend: str, steps: str, *ways: str) -> None:
    place = join(device, backend)
    with torch_group("cpu:gradwire,cuda:nccl" if backend == "nccl" else "cpu:gradwire,cuda:gradwire"):
        for way in ways or WAYS:
            report({"hook": way, "losses": losses_of(WAYS[way], place, int(steps), are_alike=way not in APART)})


def collectives(device: str, backend: str) -> None:
    place = join(device, backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    count = 1_200_001  # in elements of 8 bytes: three pieces of staging memory
    checked = []

    def filled(value: float, length: int = count) -> Tensor:
        return torch.full((length,), float(value), dtype=torch.float64, device=place)

    def check(name: str, got: list[Tensor], wanted: list[Tensor]) -> None:
        for one, other in zip(got, wanted, strict=True):
            if one.device.type != place.type or not torch.equal(one, other):
                raise AssertionError(f"rank {rank}: {name} gave {one.flatten()[:4].tolist()} on {one.device}, not {other.flatten()[:4].tolist()}")
        checked.append(name)

    everyone, total = range(size), size * (size + 1) / 2
    tensor = filled(rank + 1)
    dist.all_reduce(tensor)
    check("all_reduce", [tensor], [filled(total)])
    tensor = filled(rank + 1)
    work = dist.all_reduce(tensor, op=dist.ReduceOp.AVG, async_op=True)
    work.wait()
    check("all_reduce, asynchronous average", [tensor], [filled(total / size)])
    tensor = filled(rank + 1)
    dist.broadcast(tensor, src=size - 1)
    check("broadcast", [tensor], [filled(size)])
    tensor = filled(rank + 1)
    dist.reduce(tensor, dst=0)
    if rank == 0:
        check("reduce", [tensor], [filled(total)])
    outputs = [filled(0) for _ in everyone]
    dist.all_gather(outputs, filled(rank + 1))
    check("all_gather", outputs, [filled(one + 1) for one in everyone])
    output = filled(0, count * size)
    dist.all_gather_into_tensor(output, filled(rank + 1))
    check("all_gather_into_tensor", [output], [torch.cat([filled(one + 1) for one in everyone])])
    output = filled(0)
    dist.reduce_scatter_tensor(output, torch.cat([filled((rank + 1) * (one + 1)) for one in everyone]))
    check("reduce_scatter_tensor", [output], [filled(total * (rank + 1))])
    outputs = [filled(0) for _ in everyone]
    dist.all_to_all(outputs, [filled(10 * rank + one) for one in everyone])
    check("all_to_all", outputs, [filled(10 * one + rank) for one in everyone])
    outputs = [filled(0) for _ in everyone] if rank == 0 else None
    dist.gather(filled(rank + 1), outputs, dst=0)
    if outputs is not None:
        check("gather", outputs, [filled(one + 1) for one in everyone])
    output = filled(0)
    dist.scatter(output, [filled(one + 1) for one in everyone] if rank == 0 else None, src=0)
    check("scatter", [output], [filled(rank + 1)])
    if size > 1:
        output = filled(0)
        other = rank ^ 1
        if other < size:
            works = [dist.isend(filled(rank + 1), other), dist.irecv(output, other)]
            for work in works:
                work.wait()
            check("isend, irecv", [output], [filled(other + 1)])
    lengths = [[1000 * (giver + 2 * taker + 1) for taker in everyone] for giver in everyone]
    inputs = torch.cat([filled(10 * rank + taker, lengths[rank][taker]) for taker in everyone])
    taken = [lengths[giver][rank] for giver in everyone]
    output = filled(0, sum(taken))
    dist.all_to_all_single(output, inputs, taken, lengths[rank])
    check("all_to_all_single, uneven", [output], [torch.cat([filled(10 * giver + rank, length) for giver, length in enumerate(taken)])])
    output = filled(0)
    dist.reduce_scatter(output, [filled((rank + 1) * (one + 1)) for one in everyone])
    check("reduce_scatter", [output], [filled(total * (rank + 1))])
    objects: list[Any] = [None for _ in everyone]
    dist.all_gather_object(objects, {"rank": rank, "tensor": filled(rank, 3)})
    check("all_gather_object", [one["tensor"] for one in objects], [filled(one, 3) for one in everyone])
    leaf = filled(rank + 1).requires_grad_()
    (differentiable.all_reduce(leaf) * (rank + 1)).sum().backward()
    check("the gradient of all_reduce", [leaf.grad], [filled(total)])
    leaf = filled(rank + 1).requires_grad_()
    (torch.stack(differentiable.all_gather(leaf)) * (rank + 1)).sum().backward()
    check("the gradient of all_gather", [leaf.grad], [filled(total)])
    # A stream of the user's own: the result must be there for work queued on that stream after wait().
    if place.type == "cuda":
        stream = torch.cuda.Stream(place)
        with torch.cuda.stream(stream):
            tensor = filled(0)
            torch.cuda._sleep(20_000_000)
            tensor += rank + 1
            work = dist.all_reduce(tensor, async_op=True)
            work.wait()
            doubled = tensor * 2
        stream.synchronize()
        check("all_reduce on a stream of the user's", [doubled], [filled(2 * total)])
    report({"checked": checked})


def graph(device: str, backend: str, steps: str) -> None:
    place = join(device, backend)
    ordinary = losses_of(WAYS["plain"], place, int(steps))
    losses, stream, recorded = [], torch.cuda.Stream(place), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        training = Training(WAYS["plain"], place)
        for _ in range(3):
            training.next_batch()
            losses.append(training.step().item())
        training.model.zero_grad()
    torch.cuda.synchronize()
    with torch.cuda.graph(recorded, stream=stream, capture_error_mode="thread_local"):
        loss = training.step()
    for _ in range(int(steps) - 3):
        training.next_batch()
        recorded.replay()
        losses.append(loss.item())
    if not torch.allclose(torch.tensor(losses), torch.tensor(ordinary), rtol=1e-4):
        raise AssertionError(f"the steps of a CUDA graph gave {losses}, ordinary ones {ordinary}")
    report({"losses": losses})


def timed_step(ddp: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> float:
    dist.barrier()
    started = time.perf_counter()
    optimizer.zero_grad()
    ddp(x).square().mean().backward()
    optimizer.step()
    if x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - started


def speed(device: str, backend: str, peer: str) -> None:
    """Medians of steps in milliseconds, the two libraries and a local step in turn, and the ratio of each pair."""
    place = join(device, backend)

    def copy() -> nn.Module:
        torch.manual_seed(1)
        layers = [layer for _ in range(6) for layer in (nn.Linear(1024, 1024), nn.ReLU())]  # 6.3 million parameters
        return nn.Sequential(*layers).to(place)

    with torch_group(peer):
        models = {"local": copy(), "gradwire": DistributedDataParallel(copy()), "PyTorch": nn.parallel.DistributedDataParallel(copy())}
        optimizers = {name: torch.optim.SGD(model.parameters(), lr=1e-3) for name, model in models.items()}
        x = torch.randn(64, 1024).to(place)
        times: dict[str, list[float]] = {name: [] for name in models}
        for round_ in range(45):
            for name, model in models.items():
                seconds = timed_step(model, optimizers[name], x)
                if round_ >= 5:
                    times[name].append(seconds)
    ratios = sorted(ours / theirs for ours, theirs in zip(times["gradwire"], times["PyTorch"]))
    report({"backend": backend, "peer": peer, **{f"{name} ms": 1e3 * statistics.median(times[name]) for name in times},
            "gradwire / PyTorch": statistics.median(ratios), "half of the pairs from": ratios[len(ratios) // 4],
            "to": ratios[3 * len(ratios) // 4]})


def main() -> None:
    modes: dict[str, Callable[..., None]] = {"train": train, "collectives": collectives, "graph": graph, "speed": speed}
    if len(sys.argv) < 4 or sys.argv[1] not in modes:
        sys.exit(__doc__)
    modes[sys.argv[1]](*sys.argv[2:])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
