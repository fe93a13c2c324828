# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""One byte an element: affine quantization, all-gather, and the average of what all ranks sent.

Half a scale is the most that an element is wrong by: 0.2% of the range of its row. Per tensor the bucket is one row, per
channel rows have 512 elements. Both work on every backend, and ranges below 3e-5 lose no bits (PyTorch's do).
"""
from __future__ import annotations

from gradwire import _C
from gradwire.distributed.algorithms.ddp_comm_hooks._native import NativeHook, group_of

__all__ = ["quantization_perchannel_hook", "quantization_pertensor_hook"]


quantization_pertensor_hook = NativeHook(
    "quantization_pertensor_hook",
    lambda state: _C.hooks.make_quantization_pertensor_hook(group_of(state)),
    """One scale for the whole bucket.""",
)


quantization_perchannel_hook = NativeHook(
    "quantization_perchannel_hook",
    lambda state: _C.hooks.make_quantization_perchannel_hook(group_of(state)),
    """A scale for each 512 elements.""",
)
