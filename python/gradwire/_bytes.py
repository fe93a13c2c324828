# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""States as bytes, as they travel between ranks and into archives."""
from __future__ import annotations

import collections
import io
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["bytes_of", "join_value", "split_value", "value_of"]

# Smaller tensors stay where they are in split_value().
_LARGE = 64 << 10


def bytes_of(value: Any) -> bytes:
    """What value_of() reads: tensors, numbers, strings, and lists and dicts of them."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _on_own_device(storage: Any, location: str) -> Any:
    """Tensors of another rank's device, such as cuda:1, come to the current device of this rank."""
    kind = location.partition(":")[0]
    return storage if kind == "cpu" else storage.to(device=kind)


def value_of(state: bytes) -> Any:
    """The value that bytes_of() wrote, perhaps on another rank: tensors that were on a device are on this rank's current one."""
    return torch.load(io.BytesIO(state), map_location=_on_own_device, weights_only=True)


def _is_placeholder(tensor: torch.Tensor) -> bool:
    """Whether the tensor is in the memory of one element."""
    return tensor.numel() > 1 and tensor.untyped_storage().nbytes() == tensor.element_size()


def _map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The value with other tensors, visited in its own order. Looks into dicts, lists and tuples."""
    if type(value) is torch.Tensor:
        return change(value)
    if type(value) is dict:
        return {key: _map_tensors(item, change) for key, item in value.items()}
    if type(value) is collections.OrderedDict:
        changed = collections.OrderedDict((key, _map_tensors(item, change)) for key, item in value.items())
        changed.__dict__.update(value.__dict__)  # the versions in a module's state
        return changed
    if type(value) in (list, tuple):
        return type(value)(_map_tensors(item, change) for item in value)
    return value


def split_value(value: Any) -> tuple[bytes, list[torch.Tensor]]:
    """The value as bytes and large tensors on the CPU, which are the value's own where they are on the CPU and contiguous.

    Tensors that share memory come apart.
    """
    large: list[torch.Tensor] = []

    def change(tensor: torch.Tensor) -> torch.Tensor:
        size = tensor.numel() * tensor.element_size()
        is_plain = tensor.layout == torch.strided and tensor.is_contiguous() and not (
            tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor.requires_grad)
        if is_plain and size >= _LARGE:
            large.append(tensor.cpu())
            return torch.zeros(1, dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)
        if tensor.layout == torch.strided and _is_placeholder(tensor):
            return tensor.contiguous()  # a tensor of the value that looks like one
        return tensor

    return bytes_of(_map_tensors(value, change)), large


def join_value(state: bytes, tensors: list[torch.Tensor]) -> Any:
    """The value that split_value() took apart. It keeps those of the tensors that were on the CPU."""
    left = iter(tensors)

    def change(tensor: torch.Tensor) -> torch.Tensor:
        return next(left).to(tensor.device) if tensor.layout == torch.strided and _is_placeholder(tensor) else tensor

    return _map_tensors(value_of(state), change)
