# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The contestant PyTorch: its DDP over Gloo. ddp_worker.py SOCKET RENDEZVOUS RANK WORLD BATCH pin|free OPTIMIZER NAME

Variants and optimizers as bench/ddp_command.h has them.
"""
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import protocol

WIDTH, LAYERS, CLASSES = 1024, 6, 10


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
}


class Trainer:
    def __init__(self, variant, optimizer):
        variant, _, none = variant.partition("/")
        self.set_to_none = none == "none"
        torch.manual_seed(1)
        layers = []
        for _ in range(LAYERS):
            layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()]
        self.model = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, CLASSES))
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        if variant != "alone":
            self.model = DistributedDataParallel(self.model, gradient_as_bucket_view=variant == "view")

    def step(self, x, y):
        self.optimizer.zero_grad(set_to_none=self.set_to_none)
        torch.nn.functional.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()


class Training(protocol.Subject):
    """Steps follow each other as they do in training: no barrier between them."""

    def __init__(self, batch, optimizer):
        self.trainers = {}
        self.optimizer = optimizer
        self.x, self.y = torch.randn(batch, WIDTH), torch.randint(0, CLASSES, (batch,))

    def prepare(self, what):
        if what.variant not in self.trainers:
            self.trainers[what.variant] = Trainer(what.variant, self.optimizer)
        self.trainer = self.trainers[what.variant]
        dist.barrier()

    def run(self):
        self.trainer.step(self.x, self.y)


def main():
    path, rendezvous, rank, world, batch, pin, optimizer, name = sys.argv[1:9]
    rank, world = int(rank), int(world)
    if pin == "pin":
        protocol.pin_to_processor(rank)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(rendezvous, world), rank=rank, world_size=world)
    protocol.serve(path, name, rank, Training(int(batch), optimizer))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
