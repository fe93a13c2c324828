# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The contestant Gloo, as PyTorch uses it: gloo_worker.py SOCKET RENDEZVOUS RANK WORLD DTYPE OP pin|free"""
import sys

import torch
import torch.distributed as dist

import protocol

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64, "i8": torch.int8,
          "u8": torch.uint8, "i32": torch.int32, "i64": torch.int64}
OPS = {"sum": dist.ReduceOp.SUM, "product": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX,
       "band": dist.ReduceOp.BAND, "bor": dist.ReduceOp.BOR, "bxor": dist.ReduceOp.BXOR}


class Collective(protocol.Subject):
    """What bench/collectives_command.h says of each collective: `whole` has the bytes of a measurement, `part` a rank's share."""

    def __init__(self, rank, world, dtype, op):
        self.rank, self.world, self.dtype, self.op = rank, world, dtype, op

    def prepare(self, what):
        numel = what.bytes // self.dtype.itemsize
        self.whole = torch.zeros(numel, dtype=self.dtype)
        self.other = torch.zeros(numel, dtype=self.dtype)
        self.part = torch.zeros(numel // self.world, dtype=self.dtype)
        self.parts = list(self.whole.chunk(self.world)) if what.variant in ("gather", "scatter") else []
        self.run = getattr(self, what.variant)
        self.offers_a_part = what.variant in ("all_gather", "gather")

    def refill(self):
        self.whole.zero_()
        if self.offers_a_part:
            self.part.zero_()

    def barrier(self):
        dist.barrier()

    def all_reduce(self):
        dist.all_reduce(self.whole, op=self.op)

    def broadcast(self):
        dist.broadcast(self.whole, src=self.world - 1)

    def reduce(self):
        dist.reduce(self.whole, dst=0, op=self.op)

    def all_gather(self):
        dist.all_gather_into_tensor(self.whole, self.part)

    def gather(self):
        dist.gather(self.part, self.parts if self.rank == 0 else None, dst=0)

    def scatter(self):
        source = self.world - 1
        dist.scatter(self.part, self.parts if self.rank == source else None, src=source)

    def reduce_scatter(self):
        dist.reduce_scatter_tensor(self.part, self.whole, op=self.op)

    def all_to_all(self):
        dist.all_to_all_single(self.other, self.whole)

    def send_recv(self):
        sent = dist.isend(self.whole, (self.rank + 1) % self.world)
        dist.recv(self.other, (self.rank - 1) % self.world)
        sent.wait()


def main():
    path, rendezvous, rank, world, dtype, op, pin = sys.argv[1:8]
    rank, world = int(rank), int(world)
    if pin == "pin":
        protocol.pin_to_processor(rank)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(rendezvous, world), rank=rank, world_size=world)
    protocol.serve(path, "gloo", rank, Collective(rank, world, DTYPES[dtype], OPS[op]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
