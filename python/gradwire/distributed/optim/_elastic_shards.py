# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What a ZeroRedundancyOptimizer does when the ranks of its group change, for gradwire.elastic.

The methods are those of ShardedState (gradwire/ddp/sharded_state.h). An entry is what the optimizer remembers of one
parameter, under the parameter's number.
"""
from __future__ import annotations

import copy
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradwire import _C
from gradwire._bytes import bytes_of, value_of
from gradwire._errors import UnsupportedError
from gradwire.distributed.optim._pieces import options_of

if TYPE_CHECKING:
    from gradwire.distributed.optim.zero_redundancy_optimizer import ZeroRedundancyOptimizer

__all__ = ["ElasticShards"]

_NAME = "ZeroRedundancyOptimizer"


def _copy_value(value: Any, memory: Any) -> Any:
    """A copy of `value`, in `memory` where that is a tensor that fits."""
    if not isinstance(value, Tensor):
        return copy.deepcopy(value)
    if isinstance(memory, Tensor) and memory.shape == value.shape and memory.dtype == value.dtype:
        memory.copy_(value)
        return memory
    return value.detach().clone()


def _beside(parameter: Tensor, name: str, value: Any) -> Any:
    """A value of the state on the parameter's device; a number of steps on the CPU stays there, as in torch.optim."""
    if not isinstance(value, Tensor) or (name == "step" and value.is_cpu):
        return value
    return value.to(parameter.device)


class ElasticShards:
    """Of one optimizer, which owns this object; whoever calls it keeps the optimizer."""

    def __init__(self, optimizer: ZeroRedundancyOptimizer) -> None:
        self._owner = weakref.ref(optimizer)
        self._forget()

    @property
    def _optimizer(self) -> ZeroRedundancyOptimizer:
        optimizer = self._owner()
        assert optimizer is not None
        return optimizer

    def _forget(self) -> None:
        self._keeps = False  # a step of an elastic job has begun
        self._holds = False  # what was kept is from before the step
        self._stepped = False  # the optimizers have stepped since then
        self._undone = False  # undo_step() has brought the parameters back
        self._values: list[Tensor] = []  # of all parameters
        self._versions: list[int] = []
        self._entries: dict[int, dict[str, Any]] = {}  # of this rank's parameters and the copied ones

    # Around a step of the optimizer.

    @torch.no_grad()
    def keep(self) -> None:
        """Keeps what the step is about to change, in an elastic job."""
        if not self._keeps or self._holds:
            return
        parameters = self._optimizer._parameters()
        old = self._values if len(self._values) == len(parameters) else [None] * len(parameters)
        self._values = [_copy_value(parameter.detach(), memory) for parameter, memory in zip(parameters, old)]
        self._versions = [parameter._version for parameter in parameters]
        before = self._entries
        self._entries = {
            entry: {name: _copy_value(value, before.get(entry, {}).get(name)) for name, value in state.items()}
            for entry, state in self._present().items()
        }
        self._holds = True

    def stepped(self) -> None:
        self._stepped = True

    # ShardedState

    def identity(self) -> str:
        if self._optimizer._overlap_with_ddp:
            raise UnsupportedError(
                f"{_NAME}: with overlap_with_ddp the steps run in the backward pass, and cannot be undone when a rank is "
                "lost; leave it False in an elastic job.")
        sizes = [parameter.numel() for parameter in self._optimizer._parameters()]
        groups = len(self._optimizer.param_groups)
        return f"{_NAME} over {len(sizes)} parameters in {groups} groups ({sum(sizes)} elements)"

    def owners_among(self, size: int) -> list[int]:
        partition = _C.optim.GreedyPartition(size)
        return [
            owner for group in self._optimizer.param_groups
            for owner in partition.add_group([parameter.numel() for parameter in group["params"]])
        ]

    def begin_step(self) -> None:
        self._keeps = True
        self._holds = self._stepped = self._undone = False

    @torch.no_grad()
    def undo_step(self) -> list[tuple[Tensor, int]]:
        if not self._holds:
            return []
        self._undone = True
        parameters = self._optimizer._parameters()
        for parameter, value in zip(parameters, self._values):
            parameter.detach().copy_(value)
        return list(zip(parameters, self._versions))

    def held(self, undone: bool) -> str:
        """A letter for each entry: o (own), c (copy), n (no)."""
        optimizer = self._optimizer
        if undone and not (self._undone and self._stepped):
            return "n" * len(optimizer._parameters())
        letters = {optimizer._copied_rank(): "c", optimizer.rank: "o"}
        return "".join(letters.get(optimizer._owners[parameter], "n") for parameter in optimizer._parameters())

    def save_entries(self, entries: list[int], undone: bool) -> bytes:
        state = self._chosen(undone)
        return bytes_of({entry: state[entry] for entry in entries if entry in state})

    def read_entries(self, entries: list[int], path: str) -> bytes:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        numbers = [number for group in saved["param_groups"] for number in group["params"]]
        state = {entry: saved["state"][name] for entry, name in enumerate(numbers) if name in saved["state"]}
        return bytes_of({entry: state[entry] for entry in entries if entry in state})

    def new_entries(self, entries: list[int]) -> bytes:
        return bytes_of({})

    def save_common(self) -> bytes:
        return bytes_of([options_of(group) for group in self._optimizer.param_groups])

    def load_common(self, state: bytes) -> None:
        for group, options in zip(self._optimizer.param_groups, value_of(state)):
            group.update(options)

    def deal(self, rank: int, size: int, copies: bool, undone: bool, parcels: list[tuple[list[int], bytes]]) -> None:
        state = self._chosen(undone)
        for entries, parcel in parcels:
            received = value_of(parcel)
            for entry in entries:
                state.pop(entry, None)
                if entry in received:
                    state[entry] = received[entry]
        self._forget()
        self._optimizer._place_anew(rank, size, copies)
        for holder in self._optimizer._holders():
            mine = {parameter for group in holder.param_groups for parameter in group["params"]}
            for entry, parameter in enumerate(self._optimizer._parameters()):
                if parameter in mine and entry in state:
                    holder.state[parameter] = {name: _beside(parameter, name, value) for name, value in state[entry].items()}

    def _present(self) -> dict[int, dict[str, Any]]:
        """What the optimizers of this rank remember, by entry."""
        return {
            entry: dict(holder.state[parameter])
            for entry, parameter in enumerate(self._optimizer._parameters())
            for holder in self._optimizer._holders() if parameter in holder.state
        }

    def _chosen(self, undone: bool) -> dict[int, dict[str, Any]]:
        return dict(self._entries) if self._undone and not undone else self._present()
