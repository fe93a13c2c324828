# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Hooks that average and nothing else, and half precision around any hook."""
from __future__ import annotations

from typing import Any

import torch
from torch.futures import Future

from gradwire import _C
from gradwire._C import GradBucket, ProcessGroup
from gradwire.distributed.algorithms.ddp_comm_hooks._native import Hook, group_of, native, native_hook

__all__ = [
    "allreduce_hook", "bf16_compress_hook", "bf16_compress_wrapper", "fp16_compress_hook", "fp16_compress_wrapper",
]


@native(lambda state: _C.hooks.make_allreduce_hook(group_of(state)))
def allreduce_hook(process_group: ProcessGroup | None, bucket: GradBucket) -> Future[torch.Tensor]:
    """Divides by the number of ranks, then sums. process_group None: DDP's own."""
    return _C.hooks.allreduce_hook(group_of(process_group), bucket)


@native(lambda state: _C.hooks.make_fp16_compress_hook(group_of(state)))
def fp16_compress_hook(process_group: ProcessGroup | None, bucket: GradBucket) -> Future[torch.Tensor]:
    """Casts to float16, divides there, sums, casts back. Values beyond 65504 become infinite."""
    return _C.hooks.fp16_compress_hook(group_of(process_group), bucket)


@native(lambda state: _C.hooks.make_bf16_compress_hook(group_of(state)))
def bf16_compress_hook(process_group: ProcessGroup | None, bucket: GradBucket) -> Future[torch.Tensor]:
    """The same in bfloat16: the range of float32, 8 significant bits. On every backend."""
    return _C.hooks.bf16_compress_hook(group_of(process_group), bucket)


def fp16_compress_wrapper(hook: Hook) -> Hook:
    """A hook that runs `hook` on the bucket cast to float16, and casts its result back."""
    return _wrapped(hook, _C.hooks.make_fp16_compress_wrapper)


def bf16_compress_wrapper(hook: Hook) -> Hook:
    """The same in bfloat16."""
    return _wrapped(hook, _C.hooks.make_bf16_compress_wrapper)


def _wrapped(hook: Hook, wrap: Any) -> Hook:
    @native(lambda state: wrap(native_hook(state, hook)))
    def wrapped(state: Any, bucket: GradBucket) -> Future[torch.Tensor]:
        return wrap(native_hook(state, hook)).run(bucket)

    return wrapped
