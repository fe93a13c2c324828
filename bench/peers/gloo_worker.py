# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The contestant Gloo, as PyTorch uses it: gloo_worker.py SOCKET RENDEZVOUS RANK WORLD DTYPE OP pin|free

Speaks the lines that bench/worker.h describes.
"""
import os
import socket
import sys
import time

import torch
import torch.distributed as dist

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64, "i8": torch.int8,
          "u8": torch.uint8, "i32": torch.int32, "i64": torch.int64}
OPS = {"sum": dist.ReduceOp.SUM, "product": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX,
       "band": dist.ReduceOp.BAND, "bor": dist.ReduceOp.BOR, "bxor": dist.ReduceOp.BXOR}


def measure(size, iterations, warm_up, cold, dtype, op):
    data = torch.zeros(size // dtype.itemsize, dtype=dtype)
    evict = torch.zeros(64 << 20, dtype=torch.uint8) if cold else None
    samples = []
    for i in range(warm_up + iterations):
        data.zero_()
        if cold:
            evict.add_(1)
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(data, op=op)
        took = time.perf_counter() - begin
        if i >= warm_up:
            samples.append(took * 1e6)
    dist.barrier()
    return samples


def main():
    path, rendezvous, rank, world, dtype, op, pin = sys.argv[1:8]
    rank, world = int(rank), int(world)
    if pin == "pin":
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {allowed[rank % len(allowed)]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(rendezvous, world), rank=rank, world_size=world)
    line = socket.socket(socket.AF_UNIX)
    line.connect(path)
    line.sendall(f"hello gloo {rank}\n".encode())
    for command in line.makefile():
        words = command.split()
        if words[0] == "quit":
            break
        samples = measure(int(words[1]), int(words[2]), int(words[3]), words[5] == "cold", DTYPES[dtype], OPS[op])
        reply = "samples " + " ".join(f"{s:.3f}" for s in samples) if rank == 0 else "done"
        line.sendall(f"{reply}\n".encode())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
