# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Python objects between ranks. They travel pickled: receive only from programs you trust.

Tensors here name their device, the CPU: torch.set_default_device() may name another.
"""
from __future__ import annotations

import ctypes
import pickle
from typing import Any

import torch
from torch import Tensor

from gradwire._errors import InvalidArgument
from gradwire.distributed import _collectives as c
from gradwire.distributed._groups import _resolve, _takes_part

Group = c.Group
_CPU = torch.device("cpu")


def _tensor_of(value: Any) -> Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)


def _object_in(tensor: Tensor, size: int) -> Any:
    # `tensor` is contiguous. Not through NumPy, which torch does without.
    return pickle.loads(ctypes.string_at(tensor.data_ptr(), size))


def _sizes(tensor: Tensor, group: Group) -> list[int]:
    """Every rank's number of bytes."""
    sizes = torch.empty(_resolve(group).size(), dtype=torch.int64, device=_CPU)
    c.all_gather_into_tensor(sizes, torch.tensor([tensor.numel()], device=_CPU), group)
    return [int(size) for size in sizes]


def _padded(tensor: Tensor, size: int) -> Tensor:
    return torch.nn.functional.pad(tensor, (0, size - tensor.numel()))


def all_gather_object(object_list: list[Any], obj: Any, group: Group = None) -> None:
    """All ranks' objects, in rank order, into `object_list`, which has one place a rank."""
    if not _takes_part(group):
        return
    own = _tensor_of(obj)
    sizes = _sizes(own, group)
    if len(object_list) != len(sizes):
        raise InvalidArgument(f"all_gather_object: object_list has {len(object_list)} places for {len(sizes)} ranks.")
    gathered = torch.empty(len(sizes), max(sizes), dtype=torch.uint8, device=_CPU)
    c.all_gather_into_tensor(gathered, _padded(own, max(sizes)), group)
    for rank, size in enumerate(sizes):
        object_list[rank] = _object_in(gathered[rank], size)


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Group = None,
    group_dst: int | None = None,
) -> None:
    """All ranks' objects on rank `dst` (default 0), into `object_gather_list`, which only that rank gives."""
    if not _takes_part(group):
        return
    root = c._rank_in(group, dst, group_dst, "dst", default=0)
    own = _tensor_of(obj)
    receives = _resolve(group).rank() == root
    sizes = _sizes(own, group)
    if receives and (object_gather_list is None or len(object_gather_list) != len(sizes)):
        raise InvalidArgument(f"gather_object: rank {root} of the group must give a list with {len(sizes)} places.")
    parts = [torch.empty(max(sizes), dtype=torch.uint8, device=_CPU) for _ in sizes] if receives else None
    c.gather(_padded(own, max(sizes)), parts, group=group, group_dst=root)
    if parts is not None and object_gather_list is not None:
        for rank, size in enumerate(sizes):
            object_gather_list[rank] = _object_in(parts[rank], size)


def _packed(objects: list[Any]) -> tuple[Tensor, Tensor]:
    tensors = [_tensor_of(value) for value in objects]
    return torch.tensor([tensor.numel() for tensor in tensors], dtype=torch.int64, device=_CPU), torch.cat(tensors)


def _unpack(objects: list[Any], sizes: Tensor, data: Tensor) -> None:
    for place, part in enumerate(torch.split(data, [int(size) for size in sizes])):
        objects[place] = _object_in(part, part.numel())


def broadcast_object_list(
    object_list: list[Any], src: int | None = None, group: Group = None, device: Any = None, group_src: int | None = None
) -> None:
    """The objects of rank `src` (default 0) on every rank, in place; lists are of one length on all ranks."""
    _refuse_device("broadcast_object_list", device)
    if not _takes_part(group) or not object_list:
        return
    root = c._rank_in(group, src, group_src, "src", default=0)
    sends = _resolve(group).rank() == root
    sizes, data = _packed(object_list) if sends else (torch.empty(len(object_list), dtype=torch.int64, device=_CPU), None)
    c.broadcast(sizes, group=group, group_src=root)
    if data is None:
        data = torch.empty(int(sizes.sum()), dtype=torch.uint8, device=_CPU)
    c.broadcast(data, group=group, group_src=root)
    if not sends:
        _unpack(object_list, sizes, data)


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: Group = None,
    group_src: int | None = None,
) -> None:
    """One object of rank `src` (default 0) to each rank, into scatter_object_output_list[0]."""
    if not _takes_part(group):
        return
    if len(scatter_object_output_list) < 1:
        raise InvalidArgument("scatter_object_list: scatter_object_output_list needs a place for the object.")
    resolved = _resolve(group)
    root = c._rank_in(group, src, group_src, "src", default=0)
    parts = None
    sizes = torch.empty(resolved.size(), dtype=torch.int64, device=_CPU)
    if resolved.rank() == root:
        if scatter_object_input_list is None or len(scatter_object_input_list) != resolved.size():
            raise InvalidArgument(f"scatter_object_list: the source must give {resolved.size()} objects.")
        parts = [_tensor_of(value) for value in scatter_object_input_list]
        sizes = torch.tensor([part.numel() for part in parts], device=_CPU)
    c.broadcast(sizes, group=group, group_src=root)
    longest = int(sizes.max())
    received = torch.empty(longest, dtype=torch.uint8, device=_CPU)
    c.scatter(received, [_padded(part, longest) for part in parts] if parts else None, group=group, group_src=root)
    scatter_object_output_list[0] = _object_in(received, int(sizes[resolved.rank()]))


def send_object_list(
    object_list: list[Any],
    dst: int | None = None,
    group: Group = None,
    device: Any = None,
    group_dst: int | None = None,
    use_batch: bool = False,
) -> None:
    """Sends the objects to rank `dst`, which calls recv_object_list() with a list as long.

    use_batch makes no difference: it is for backends whose first message is collective.
    """
    _refuse_device("send_object_list", device)
    sizes, data = _packed(object_list)
    c.send(sizes, dst, group, group_dst=group_dst)
    c.send(data, dst, group, group_dst=group_dst)


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group = None,
    device: Any = None,
    group_src: int | None = None,
    use_batch: bool = False,
) -> int:
    """Receives objects from rank `src` (from any, when it is not given) into `object_list`; returns who sent.

    use_batch makes no difference, as in send_object_list().
    """
    _refuse_device("recv_object_list", device)
    sizes = torch.empty(len(object_list), dtype=torch.int64, device=_CPU)
    sender = c.recv(sizes, src, group, group_src=group_src)
    if sender < 0:
        return sender
    data = torch.empty(int(sizes.sum()), dtype=torch.uint8, device=_CPU)
    c.recv(data, sender, group)
    _unpack(object_list, sizes, data)
    return sender


def _refuse_device(name: str, device: Any) -> None:
    if device is not None and torch.device(device).type != "cpu":
        raise InvalidArgument(f"{name}: objects travel through the CPU here; leave device out.")
