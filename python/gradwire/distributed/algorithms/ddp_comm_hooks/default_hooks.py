# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Hooks that average and nothing else, and half precision around any hook."""
from __future__ import annotations

from typing import Any

from gradwire import _C
from gradwire.distributed.algorithms.ddp_comm_hooks._native import GivenHook, Hook, NativeHook, group_of, native_hook

__all__ = [
    "allreduce_hook", "bf16_compress_hook", "bf16_compress_wrapper", "fp16_compress_hook", "fp16_compress_wrapper",
]


allreduce_hook = NativeHook(
    "allreduce_hook",
    lambda state: _C.hooks.make_allreduce_hook(group_of(state)),
    """Divides by the number of ranks, then sums. process_group None: DDP's own.""",
)


fp16_compress_hook = NativeHook(
    "fp16_compress_hook",
    lambda state: _C.hooks.make_fp16_compress_hook(group_of(state)),
    """Casts to float16, divides there, sums, casts back. Values beyond 65504 become infinite.""",
)


bf16_compress_hook = NativeHook(
    "bf16_compress_hook",
    lambda state: _C.hooks.make_bf16_compress_hook(group_of(state)),
    """Casts to bfloat16 (the range of float32, 8 significant bits), divides there, sums, casts back. On every backend.""",
)


def fp16_compress_wrapper(hook: GivenHook) -> Hook:
    """A hook that runs `hook` on the bucket cast to float16, and casts its result back."""
    return _wrapped(hook, _C.hooks.make_fp16_compress_wrapper)


def bf16_compress_wrapper(hook: GivenHook) -> Hook:
    """A hook that runs `hook` on the bucket cast to bfloat16, and casts its result back."""
    return _wrapped(hook, _C.hooks.make_bf16_compress_wrapper)


def _wrapped(hook: GivenHook, wrap: Any) -> Hook:
    return NativeHook(
        "wrapped",
        lambda state: wrap(native_hook(state, hook)),
        """Casts the bucket to a type of 16 bits, runs the hook that it was made from, casts the result back.""",
    )
