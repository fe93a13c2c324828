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


class AllReduce(protocol.Subject):
    def __init__(self, dtype, op):
        self.dtype, self.op = dtype, op

    def prepare(self, what):
        self.data = torch.zeros(what.bytes // self.dtype.itemsize, dtype=self.dtype)

    def refill(self):
        self.data.zero_()

    def barrier(self):
        dist.barrier()

    def run(self):
        dist.all_reduce(self.data, op=self.op)


def main():
    path, rendezvous, rank, world, dtype, op, pin = sys.argv[1:8]
    rank, world = int(rank), int(world)
    if pin == "pin":
        protocol.pin_to_processor(rank)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(rendezvous, world), rank=rank, world_size=world)
    protocol.serve(path, "gloo", rank, AllReduce(DTYPES[dtype], OPS[op]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
