# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The contestant PyTorch: its operators for what gradwire's codecs do. codec_worker.py SOCKET pin|free

Variants are "encode/CODEC", "decode/CODEC" and, of power_sgd, "step/CODEC", as bench/codecs_command.h has them. Each class
below is a codec in the fewest operators that PyTorch offers for it, into memory that is there already where an operator can
do that. What PyTorch does less of: fp8 is a cast without scale, int8 has one scale for all values. It packs no bits: that is
made of shifts and sums.
"""
import math
import sys
import warnings

import torch

import protocol


class Cast:
    def __init__(self, values, options, dtype):
        self.values, self.narrow, self.wide = values, torch.empty_like(values, dtype=dtype), torch.empty_like(values)

    def encode(self):
        self.narrow.copy_(self.values)

    def decode(self):
        self.wide.copy_(self.narrow)


class PerTensor:
    """aminmax, quantize_per_tensor; dequantize."""

    def __init__(self, values, options):
        self.values = values

    def encode(self):
        low, high = (float(one) for one in torch.aminmax(self.values))
        scale = max((max(high, 0) - min(low, 0)) / 255, 1e-12)
        self.codes = torch.quantize_per_tensor(self.values, scale, round(-min(low, 0) / scale), torch.quint8)

    def decode(self):
        return self.codes.dequantize()


def rows_of(values, length):
    return torch.nn.functional.pad(values, (0, -len(values) % length)).view(-1, length)


class Blocks:
    """Blocks with a scale each: amax, divide, round (or add random numbers and floor), pack into bytes."""

    def __init__(self, values, options, bits):
        self.rows, self.bits, self.levels = rows_of(values, int(options.get("block", 256))), bits, 2 ** (bits - 1) - 1
        self.stochastic = options.get("rounding") == "stochastic"

    def encode(self):
        self.scale = self.rows.abs().amax(1, keepdim=True) / self.levels
        codes = self.rows / self.scale
        codes = (codes + torch.rand_like(codes)).floor_() if self.stochastic else codes.round_()
        codes = codes.add_(2 ** (self.bits - 1)).to(torch.uint8)
        a_byte = 8 // self.bits
        packed = codes[:, 0::a_byte].clone()
        for i in range(1, a_byte):
            packed |= codes[:, i::a_byte] << (i * self.bits)
        self.packed = packed

    def decode(self):
        shifts = torch.arange(0, 8, self.bits, dtype=torch.uint8)
        codes = (self.packed.unsqueeze(-1) >> shifts) & (2 ** self.bits - 1)
        return (codes.view_as(self.rows).float() - 2 ** (self.bits - 1)) * self.scale


class Signs:
    """One bit a value, with a magnitude a block where there is one."""

    WEIGHTS = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)
    SHIFTS = torch.arange(8, dtype=torch.uint8)

    def __init__(self, values, options, scaled):
        self.rows, self.scaled, self.scale = rows_of(values, int(options.get("block", 4096))), scaled, torch.ones(1)

    def encode(self):
        if self.scaled:
            self.scale = self.rows.abs().mean(1, keepdim=True)
        self.packed = (torch.signbit(self.rows).view(-1, 8) * self.WEIGHTS).sum(1, dtype=torch.uint8)

    def decode(self):
        negative = ((self.packed.unsqueeze(-1) >> self.SHIFTS) & 1).view_as(self.rows).bool()
        return torch.where(negative, -self.scale, self.scale)


class Sparse:
    """Indices and values; decoding sets them in zeros."""

    def __init__(self, values, options):
        self.values, self.options, self.out = values, options, torch.empty_like(values)
        self.count = max(1, math.ceil(float(options.get("ratio", 0.01)) * len(values)))

    def encode(self):
        self.indices = self.choose()
        self.chosen = self.values[self.indices]

    def decode(self):
        self.out.zero_()
        self.out[self.indices] = self.chosen


class TopK(Sparse):
    def choose(self):
        return torch.topk(self.values.abs(), self.count, sorted=False).indices


class Threshold(Sparse):
    def choose(self):
        return (self.values.abs() >= float(self.options.get("threshold", 0.01))).nonzero().squeeze(1)


class RandomK(Sparse):
    def choose(self):
        stretch = len(self.values) // self.count
        return torch.arange(self.count) * stretch + torch.randint(stretch, (self.count,))


class Products:
    """PowerSGD's, a bmm a matrix, as PyTorch's hook makes them."""

    def __init__(self, values, options):
        self.values, rank = values, int(options.get("rank", 1))
        side = min(1024, math.isqrt(len(values)))
        count = len(values) // side ** 2
        self.matrices = torch.empty(count, 1, side, side)
        self.p, self.q = torch.empty(count, 1, side, rank), torch.empty(count, 1, side, rank)

    def refill(self):
        self.matrices.view(-1).copy_(self.values)
        self.p.normal_()
        self.q.normal_()

    def encode(self):
        for m, p, q in zip(self.matrices, self.p, self.q):
            torch.bmm(m, q, out=p)
        for m, p, q in zip(self.matrices, self.p, self.q):
            torch.bmm(m.transpose(1, 2), p, out=q)

    def decode(self):
        for m, p, q in zip(self.matrices, self.p, self.q):
            torch.bmm(p, q.transpose(1, 2), out=m)

    def step(self):
        self.encode()
        self.decode()


CODECS = {"fp16": (Cast, torch.float16), "bf16": (Cast, torch.bfloat16), "fp8_e4m3": (Cast, torch.float8_e4m3fn),
          "fp8_e5m2": (Cast, torch.float8_e5m2), "int8": (PerTensor,), "int4": (Blocks, 4), "int2": (Blocks, 2),
          "one_bit": (Signs, True), "sign": (Signs, False), "top_k": (TopK,), "dgc": (TopK,),
          "threshold": (Threshold,), "random_k": (RandomK,), "power_sgd": (Products,)}


def make_codec(spec, values):
    name, _, text = spec.partition(":")
    options = dict(part.split("=", 1) for part in text.split(",") if part)
    kind, *arguments = CODECS[name]
    if name == "int8" and "stochastic" in text:
        kind, arguments = Blocks, [8]
    return kind(values, options, *arguments)


class Codecs(protocol.Subject):
    def __init__(self):
        self.values = torch.empty(0)

    def prepare(self, what):
        if len(self.values) != what.bytes // 4:
            self.values = torch.randn(what.bytes // 4, generator=torch.Generator().manual_seed(1))
        direction, spec = what.variant.split("/", 1)
        self.codec = make_codec(spec, self.values)
        self.refill = getattr(self.codec, "refill", lambda: None)
        self.refill()
        self.codec.encode()
        self.run = getattr(self.codec, direction)


def main():
    path, pin = sys.argv[1:3]
    warnings.filterwarnings("ignore", message="torch.quantize_per_tensor")  # it is to go, but nothing has its place yet
    if pin == "pin":
        protocol.pin_to_processor(0)
    torch.set_num_threads(1)
    with torch.no_grad():
        protocol.serve(path, "pytorch", 0, Codecs())


if __name__ == "__main__":
    main()
