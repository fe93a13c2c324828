# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The contestant PyTorch: its communication hooks over Gloo. hook_worker.py SOCKET RENDEZVOUS RANK WORLD pin|free

The variant of a measurement is a hook as gradwire names it. A hook is a Python function that DDP calls with a bucket; here
it is called with an object that has a bucket's methods.
"""
import math
import sys

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks, powerSGD_hook, quantization_hooks

import protocol

SIDE = 1024
PLAIN = {"allreduce": default_hooks.allreduce_hook,
         "fp16_compress": default_hooks.fp16_compress_hook,
         "bf16_compress": default_hooks.bf16_compress_hook,
         "quantize_per_tensor": quantization_hooks.quantization_pertensor_hook,
         "quantize_per_channel": quantization_hooks.quantization_perchannel_hook,
         "noop": debugging_hooks.noop_hook}
POWER = {"power_sgd": (powerSGD_hook.powerSGD_hook, 1),
         "power_sgd_rank2": (powerSGD_hook.powerSGD_hook, 2),
         "batched_power_sgd": (powerSGD_hook.batched_powerSGD_hook, 1),
         "batched_power_sgd_rank2": (powerSGD_hook.batched_powerSGD_hook, 2)}
POWER_OPTIONS = {"rank": ("matrix_approximation_rank", int), "start": ("start_powerSGD_iter", int),
                 "min_rate": ("min_compression_rate", float),
                 "error_feedback": ("use_error_feedback", lambda text: text in ("1", "true")),
                 "warm_start": ("warm_start", lambda text: text in ("1", "true")),
                 "epsilon": ("orthogonalization_epsilon", float), "seed": ("random_seed", int),
                 "log_every": ("compression_stats_logging_frequency", int),
                 "same_shape": ("batch_tensors_with_same_shape", lambda text: text in ("1", "true"))}


def make_hook(spec):
    """(state, hook) of a name with options."""
    name, _, text = spec.partition(":")
    options = dict(part.split("=", 1) for part in text.split(",") if part)
    known = POWER_OPTIONS if name in POWER else {}
    for option in options:
        if option not in known:
            raise ValueError(f"PyTorch's hook has no option {option}")
    if name in PLAIN:
        return None, PLAIN[name]
    hook, rank = POWER[name]
    arguments = {"matrix_approximation_rank": rank}
    arguments.update((known[option][0], known[option][1](value)) for option, value in options.items())
    return powerSGD_hook.PowerSGDState(None, **arguments), hook


def make_shapes(numel):
    """As hook_worker.cc has them."""
    shapes = []
    while numel >= SIDE * SIDE + SIDE:
        shapes += [(SIDE, SIDE), (SIDE,)]
        numel -= SIDE * SIDE + SIDE
    side = math.isqrt(numel)
    return [shape for shape in shapes + [(side, side), (numel - side * side,)] if math.prod(shape) > 0]


class Bucket:
    def __init__(self, buffer, shapes):
        self.memory, self.shapes = buffer, shapes
        self.tensors = [torch.zeros(shape) for shape in shapes]

    def index(self):
        return 0

    def is_last(self):
        return True

    def buffer(self):
        return self.memory

    def set_buffer(self, buffer):
        self.memory = buffer

    def parameters(self):
        return self.tensors

    def gradients(self):
        parts = self.memory.split([math.prod(shape) for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes)]


class Hooks(protocol.Subject):
    def __init__(self, rank):
        self.rank, self.numel, self.spec = rank, 0, ""

    def prepare(self, what):
        numel = what.bytes // 4
        if numel != self.numel:
            self.numel, self.shapes, self.spec = numel, make_shapes(numel), ""
            generator = torch.Generator().manual_seed(self.rank + 1)
            self.normal = torch.empty(numel + numel // 4 + SIDE).normal_(generator=generator)
            self.buffer = torch.empty(numel)
        if what.variant != self.spec:
            self.state, self.hook = make_hook(what.variant)
            # DDP refuses some hooks itself.
            torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1)).register_comm_hook(self.state, self.hook)
            self.spec, self.step = what.variant, 0
            self.bucket = Bucket(self.buffer, self.shapes)

    def refill(self):
        offset = 7919 * self.step % (len(self.normal) - self.numel)
        self.bucket.set_buffer(self.buffer)
        self.buffer.copy_(self.normal[offset:offset + self.numel])
        self.step += 1

    def barrier(self):
        dist.barrier()

    def run(self):
        result = self.hook(self.state, self.bucket).wait()
        if result.data_ptr() != self.buffer.data_ptr():
            self.buffer.copy_(result)


def main():
    path, rendezvous, rank, world, pin = sys.argv[1:6]
    rank, world = int(rank), int(world)
    if pin == "pin":
        protocol.pin_to_processor(rank)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(rendezvous, world), rank=rank, world_size=world)
    with torch.no_grad():
        protocol.serve(path, "pytorch", rank, Hooks(rank))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
