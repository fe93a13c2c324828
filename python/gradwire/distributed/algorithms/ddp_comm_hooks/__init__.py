# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Communication hooks for DistributedDataParallel, by the names of torch.distributed.algorithms.ddp_comm_hooks."""
from __future__ import annotations

import enum
from functools import partial
from typing import Any

from gradwire.distributed.algorithms.ddp_comm_hooks import (
    debugging_hooks as debugging,
    default_hooks as default,
    mixed_precision_hooks as mixed_precision,
    optimizer_overlap_hooks as optimizer_overlap,
    post_localSGD_hook as post_localSGD,
    powerSGD_hook as powerSGD,
    quantization_hooks as quantization,
)

__all__ = ["DDPCommHookType", "register_ddp_comm_hook"]

# From Python 3.14 on a partial in a class body is a method, not a member, unless it says so.
_member = getattr(enum, "member", lambda value: value)


def _plain(model: Any, state: Any, hook: Any) -> None:
    model.register_comm_hook(state, hook)


def _power_sgd(model: Any, state: Any, hook: Any, rank: int) -> None:
    model.register_comm_hook(powerSGD.PowerSGDState(process_group=state, matrix_approximation_rank=rank), hook)


class DDPCommHookType(enum.Enum):
    """PyTorch's ten hooks. `DDPCommHookType.ALLREDUCE.value(model=model, state=group)` registers one."""

    ALLREDUCE = _member(partial(_plain, hook=default.allreduce_hook))
    FP16_COMPRESS = _member(partial(_plain, hook=default.fp16_compress_hook))
    BF16_COMPRESS = _member(partial(_plain, hook=default.bf16_compress_hook))
    QUANTIZE_PER_TENSOR = _member(partial(_plain, hook=quantization.quantization_pertensor_hook))
    QUANTIZE_PER_CHANNEL = _member(partial(_plain, hook=quantization.quantization_perchannel_hook))
    POWER_SGD = _member(partial(_power_sgd, hook=powerSGD.powerSGD_hook, rank=1))
    POWER_SGD_RANK2 = _member(partial(_power_sgd, hook=powerSGD.powerSGD_hook, rank=2))
    BATCHED_POWER_SGD = _member(partial(_power_sgd, hook=powerSGD.batched_powerSGD_hook, rank=1))
    BATCHED_POWER_SGD_RANK2 = _member(partial(_power_sgd, hook=powerSGD.batched_powerSGD_hook, rank=2))
    NOOP = _member(partial(_plain, hook=debugging.noop_hook))

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return getattr, (type(self), self.name)


def register_ddp_comm_hook(comm_hook_type: DDPCommHookType, model: Any, state: Any = None) -> None:
    """Registers the hook of that type with `model`. state: a process group, or None for DDP's own."""
    comm_hook_type.value(model=model, state=state)
