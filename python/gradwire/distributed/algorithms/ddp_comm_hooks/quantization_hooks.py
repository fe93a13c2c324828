# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""One byte an element: affine quantization, all-gather, and the average of what all ranks sent.

Half a scale is the most that an element is wrong by: 0.2% of the range of its row. Per tensor the bucket is one row, per
channel rows have 512 elements. Both work on every backend, and ranges below 3e-5 lose no bits (PyTorch's do).
"""
from __future__ import annotations

import torch
from torch.futures import Future

from gradwire import _C
from gradwire._C import GradBucket, ProcessGroup
from gradwire.distributed.algorithms.ddp_comm_hooks._native import group_of, native

__all__ = ["quantization_perchannel_hook", "quantization_pertensor_hook"]


@native(lambda state: _C.hooks.make_quantization_pertensor_hook(group_of(state)))
def quantization_pertensor_hook(process_group: ProcessGroup | None, bucket: GradBucket) -> Future[torch.Tensor]:
    """One scale for the whole bucket."""
    return _C.hooks.quantization_pertensor_hook(group_of(process_group), bucket)


@native(lambda state: _C.hooks.make_quantization_perchannel_hook(group_of(state)))
def quantization_perchannel_hook(process_group: ProcessGroup | None, bucket: GradBucket) -> Future[torch.Tensor]:
    """A scale for each 512 elements."""
    return _C.hooks.quantization_perchannel_hook(group_of(process_group), bucket)
