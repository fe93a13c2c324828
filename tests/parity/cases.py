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
    # Inputs whose i-th feature is within +-decay^i, and targets that are a function of them: gradients whose singular
    # values fall off, as in training. None: independent random numbers.
    decay: float | None = None
    rate: float = 0.1
    batch: int = 4
    lossy: bool = False  # must end three tolerances away from plain averaging, or the case proves nothing


def power_sgd(options, batched=False, **fields):
    """A case of PowerSGD: gradients as training has them, no tensor that stays uncompressed. float32's rounding is
    amplified, in PyTorch as in gradwire, where a step's subspace has little in common with the one before."""
    form = "batched_power_sgd" if batched else "power_sgd"
    return Case(f"{form}:{options}", form, 1e-3,
                **{"bias": False, "decay": 0.8, "rate": 0.5, "batch": 32, "lossy": True, **fields})


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
    # One bucket, as PyTorch's DDP can take, with the memories on and off and a start within the steps.
    *(power_sgd(f"rank={rank},start={start},error_feedback={feedback},warm_start={warm},seed={rank + start}", batched)
      for batched in (False, True) for rank in (1, 2)
      for start, feedback, warm in ((2, 1, 1), (10, 1, 0), (5, 0, 1), (0, 0, 0))),
    # Ranks above 2: QR in PyTorch.
    power_sgd("rank=4,start=3"),
    power_sgd("rank=3,start=3", batched=True),
    power_sgd("rank=2,start=3,epsilon=0.001"),
    # Three of five matrices of one shape: batching changes the order of random numbers.
    *(power_sgd(f"rank=2,start=3,warm_start={warm},same_shape=1", widths=(24, 40, 40, 40, 40, 16)) for warm in (0, 1)),
    # A bucket that is no square: 41 x 41 with 65 zeros at the end. See references.batched_power_sgd().
    power_sgd("rank=2,start=3,error_feedback=0", batched=True, widths=(24, 40, 16, 1)),
    # Several buckets, one after the other in PyTorch. Those of the batched form are squares.
    *(power_sgd("rank=2,start=3,seed=5" + more, lanes=2, **SEVERAL)
      for more in (",error_feedback=0,warm_start=0", "")),
    *(power_sgd("rank=2,start=3,seed=5" + more, batched=True, lanes=2, widths=(32, 32, 32, 32, 32), cap=0.002)
      for more in (",error_feedback=0,warm_start=0", "")),
)
