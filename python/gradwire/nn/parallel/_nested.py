# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors in lists, tuples, dicts and dataclasses, nested: what forward() takes and returns."""
from __future__ import annotations

import copy
import dataclasses
from typing import Any, Callable

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence


def tensors_in(value: Any, found: list[Tensor]) -> list[Tensor]:
    """Adds the tensors in `value` to `found`, and returns `found`."""
    if isinstance(value, Tensor):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            tensors_in(item, found)
    elif isinstance(value, dict):
        for item in value.values():
            tensors_in(item, found)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            tensors_in(getattr(value, field.name, None), found)
    return found


def moved_to(value: Any, move: Callable[[Tensor], Tensor]) -> Any:
    """`value` with move(tensor) for every tensor in it; what is no container of tensors stays as it is."""
    if isinstance(value, Tensor):
        return move(value)
    if isinstance(value, PackedSequence):  # whose batch sizes are numbers on the CPU
        indices = (moved_to(value.sorted_indices, move), moved_to(value.unsorted_indices, move))
        return PackedSequence(moved_to(value.data, move), value.batch_sizes, *indices)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(moved_to(item, move) for item in value))
    if isinstance(value, (list, tuple)):
        return _moved_sequence(value, move)
    if isinstance(value, dict):
        return _moved_dict(value, move)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _moved_dataclass(value, move)
    return value


def _moved_dataclass(value: Any, move: Callable[[Tensor], Tensor]) -> Any:
    """`value` itself where nothing in it moved: forward() may write to it for its caller."""
    fields = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
    moved = {name: moved_to(getattr(value, name), move) for name in fields}
    if all(moved[name] is getattr(value, name) for name in fields):
        return value
    copied = copy.copy(value)
    for name, item in moved.items():
        object.__setattr__(copied, name, item)  # also of a frozen one
    return copied


def _moved_sequence(value: Any, move: Callable[[Tensor], Tensor]) -> Any:
    """The same for a list or tuple of any class; its constructor may take other arguments than theirs."""
    moved = [moved_to(item, move) for item in value]
    if all(item is before for item, before in zip(moved, value)):
        return value
    if isinstance(value, tuple):
        return type(value)(moved)
    copied = copy.copy(value)
    copied[:] = moved
    return copied


def _moved_dict(value: dict[Any, Any], move: Callable[[Tensor], Tensor]) -> dict[Any, Any]:
    """The same for a dict of any class; its constructor may take other arguments than dict's."""
    moved = {key: moved_to(item, move) for key, item in value.items()}
    if all(item is value[key] for key, item in moved.items()):
        return value
    copied = copy.copy(value)
    if getattr(value, "__dict__", None) is value:  # its items are its attributes
        copied.__dict__ = copied
    for key, item in moved.items():
        copied[key] = item
    return copied
