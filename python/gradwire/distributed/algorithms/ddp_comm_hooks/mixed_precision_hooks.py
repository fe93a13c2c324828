# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""All-reduce in another type than the gradients', divided after the sum, as PyTorch's mixed precision does."""
from __future__ import annotations

import torch

from gradwire import _C
from gradwire.distributed.algorithms.ddp_comm_hooks._native import Hook, NativeHook, group_of

__all__ = ["reduce_in_dtype_hook"]


def reduce_in_dtype_hook(dtype: torch.dtype) -> Hook:
    """A hook whose state is a process group (or None): casts the bucket to `dtype`, sums, divides there, casts back."""

    return NativeHook(
        "reduce_in_dtype",
        lambda state: _C.hooks.make_reduce_in_dtype_hook(dtype, group_of(state)),
        f"""Casts the bucket to {dtype}, sums, divides there, casts back.""",
    )
