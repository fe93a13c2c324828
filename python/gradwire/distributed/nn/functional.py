# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Collectives that autograd differentiates. Each returns new tensors and changes none of its arguments.

Gradients are those of the sum of all ranks' losses, for every reduction that has one: sums and averages by linearity, MIN
and MAX give the gradient to the ranks that hold the extreme value, PRODUCT multiplies with the other ranks' values. All
ranks make the same calls, and if one needs a gradient all run backward. Tensors that are given as outputs lend their
shapes only. Ranks (`src`, `dst`) are those of the default group.
"""
from __future__ import annotations

from typing import Sequence

from torch import Tensor

from gradwire import _C
from gradwire._C import ReduceOp
from gradwire.distributed._collectives import Group, _rank_in
from gradwire.distributed._groups import _resolve

_f = _C.functional


def broadcast(tensor: Tensor, src: int, group: Group = None) -> Tensor:
    """The tensor of rank `src`, on every rank. Gradient: the sum of all ranks' at the source, zeros elsewhere."""
    return _f.broadcast(tensor, _rank_in(group, src, None, "src"), _resolve(group))


def all_reduce(tensor: Tensor, op: ReduceOp = ReduceOp.SUM, group: Group = None) -> Tensor:
    """The reduction of all ranks' tensors, on every rank."""
    return _f.all_reduce(tensor, _resolve(group), op)


def reduce(tensor: Tensor, dst: int, op: ReduceOp = ReduceOp.SUM, group: Group = None) -> Tensor:
    """The reduction on rank `dst`, zeros elsewhere. Gradient: from that rank's output alone."""
    return _f.reduce(tensor, _rank_in(group, dst, None, "dst"), _resolve(group), op)


def reduce_scatter(
    output: Tensor | None, input_list: Sequence[Tensor], op: ReduceOp = ReduceOp.SUM, group: Group = None
) -> Tensor:
    """The reduction of all ranks' input_list[this rank]."""
    return _f.reduce_scatter(list(input_list), _resolve(group), op)


def all_gather(tensor: Tensor, group: Group = None) -> tuple[Tensor, ...]:
    """All ranks' tensors, in rank order. Gradient: the sum over the ranks of their gradients of this one."""
    return tuple(_f.all_gather(tensor, _resolve(group)))


def _all_gather_base(output_tensor: Tensor, input_tensor: Tensor, group: Group = None) -> Tensor:
    from torch import cat

    return cat(all_gather(input_tensor, group)).view(output_tensor.shape)


def gather(tensor: Tensor, dst: int = 0, group: Group = None) -> tuple[Tensor, ...]:
    """All ranks' tensors on rank `dst`, zeros elsewhere. Gradient: from that rank's output alone."""
    return tuple(_f.gather(tensor, _rank_in(group, dst, None, "dst"), _resolve(group)))


def scatter(tensors: Sequence[Tensor], src: int = 0, group: Group = None) -> Tensor:
    """tensors[this rank] of rank `src`. Other ranks' tensors lend their shapes, and get gradients of zeros."""
    return _f.scatter(list(tensors), _rank_in(group, src, None, "src"), _resolve(group))


def all_to_all(
    output_tensor_list: Sequence[Tensor], input_tensor_list: Sequence[Tensor], group: Group = None
) -> tuple[Tensor, ...]:
    """Output i is what rank i has at input_tensor_list[this rank]."""
    shapes = [list(output.shape) for output in output_tensor_list]
    return tuple(_f.all_to_all(list(input_tensor_list), _resolve(group), shapes))


def all_to_all_single(
    output: Tensor | None,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group = None,
) -> Tensor:
    """Part i of `input` goes to rank i; returns the parts that come, one after another in the order of the ranks.

    Parts are along dimension 0, even or of the sizes given: input_split_sizes[i] rows go to rank i, and
    output_split_sizes[i] rows come from it.
    """
    return _f.all_to_all_single(input, _resolve(group), list(output_split_sizes or []), list(input_split_sizes or []))
