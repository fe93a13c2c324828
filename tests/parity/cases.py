# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The table of compare_hooks.py: another hook is a line.

hook       as gradwire::make_hook() takes it
reference  a function of references.py that gives PyTorch's (state, hook) for the case
tolerance  of the parameters after `steps` steps: |ours - PyTorch's| <= tolerance * (1 + |PyTorch's|)
"""
import dataclasses

WORLDS = (1, 2, 4)
STEPS = 30


@dataclasses.dataclass(frozen=True)
class Case:
    hook: str
    reference: str
    tolerance: float
    widths: tuple = (24, 40, 16)
    bias: bool = True
    cap: float = 25  # MiB; PyTorch's and ours have the same buckets
    lanes: int = 1
    agree: bool = True  # all ranks must hold the same bits
    worlds: tuple = WORLDS


# Hidden layers of some 900 elements each, one bucket a layer or two: 0.004 MiB.
SEVERAL = {"widths": (24, 40, 40, 40, 40, 16), "cap": 0.004}

CASES = (
    Case("allreduce", "allreduce", 1e-5),
    Case("allreduce", "allreduce", 1e-5, lanes=2, **SEVERAL),
    Case("fp16_compress", "fp16_compress", 1e-3),
    Case("fp16_compress", "fp16_compress", 1e-3, lanes=2, **SEVERAL),
    Case("bf16_compress", "bf16_compress", 1e-3),
    Case("noop", "noop", 1e-5, agree=False),
    Case("quantize_per_tensor", "quantize_per_tensor", 1e-5),
    Case("quantize_per_tensor", "quantize_per_tensor", 1e-5, lanes=2, **SEVERAL),
    Case("quantize_per_channel", "quantize_per_channel", 1e-5),
    Case("quantize_per_channel", "quantize_per_channel", 1e-5, lanes=2, **SEVERAL),
    # 32 x 32: an exact multiple of 512, where PyTorch has an empty row more.
    Case("quantize_per_channel", "quantize_per_channel", 1e-5, widths=(32, 32), bias=False),
)
