# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The contestant PyTorch: its DDP over Gloo. ddp_worker.py SOCKET RENDEZVOUS RANK WORLD BATCH pin|free

Speaks the lines that bench/worker.h describes; variants as bench/ddp_command.h has them.
"""
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WIDTH, LAYERS, CLASSES = 1024, 6, 10


class Trainer:
    def __init__(self, variant):
        torch.manual_seed(1)
        layers = []
        for _ in range(LAYERS):
            layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()]
        self.model = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, CLASSES))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        if variant != "alone":
            self.model = DistributedDataParallel(self.model, gradient_as_bucket_view=variant == "view")

    def step(self, x, y):
        self.optimizer.zero_grad(set_to_none=False)
        torch.nn.functional.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()


def main():
    path, rendezvous, rank, world, batch, pin = sys.argv[1:7]
    rank, world, batch = int(rank), int(world), int(batch)
    if pin == "pin":
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {allowed[rank % len(allowed)]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(rendezvous, world), rank=rank, world_size=world)
    trainers = {variant: Trainer(variant) for variant in ("alone", "view", "copy")}
    x, y = torch.randn(batch, WIDTH), torch.randint(0, CLASSES, (batch,))
    line = socket.socket(socket.AF_UNIX)
    line.connect(path)
    line.sendall(f"hello pytorch {rank}\n".encode())
    for command in line.makefile():
        words = command.split()
        if words[0] == "quit":
            break
        iterations, warm_up, trainer = int(words[2]), int(words[3]), trainers[words[4]]
        dist.barrier()
        samples = []
        for i in range(warm_up + iterations):
            begin = time.perf_counter()
            trainer.step(x, y)
            if i >= warm_up:
                samples.append((time.perf_counter() - begin) * 1e6)
        reply = "samples " + " ".join(f"{s:.3f}" for s in samples) if rank == 0 else "done"
        line.sendall(f"{reply}\n".encode())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
