# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What DistributedDataParallel takes for its arguments, and what it refuses."""
from __future__ import annotations

from typing import Any

import torch

from gradwire import _C
from gradwire._errors import InvalidArgument, UnsupportedError


def refuse(**unsupported: bool) -> None:
    """Refuses arguments of PyTorch's that are given, by their names."""
    for name, given in unsupported.items():
        if given:
            raise UnsupportedError(f"DistributedDataParallel: the argument {name} is not supported; leave it out.")


def mixed_precision_of(asked: Any) -> _C.MixedPrecision | None:
    """PyTorch's _MixedPrecision, or anything with its three types."""
    if asked is None:
        return None
    if not all(hasattr(asked, name) for name in ("param_dtype", "reduce_dtype", "buffer_dtype")):
        raise TypeError(
            f"DistributedDataParallel: mixed_precision takes an object with param_dtype, reduce_dtype and buffer_dtype "
            f"(gradwire.nn.parallel.MixedPrecision), not {asked!r}."
        )
    return _C.MixedPrecision(asked.param_dtype, asked.reduce_dtype, asked.buffer_dtype)


def device_index(device: Any) -> int:
    if isinstance(device, int):
        return device
    parsed = torch.device(device)
    if parsed.type != "cuda" or parsed.index is None:
        raise InvalidArgument(f"DistributedDataParallel: device_ids takes CUDA devices, not {device}; leave it None.")
    return parsed.index
