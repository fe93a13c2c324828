# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What the step recorder hears of PyTorch's DistributedDataParallel, which tells gradwire of its collectives alone."""
from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from gradwire import _C

__all__ = ["record_steps"]


@functools.cache
def record_steps() -> None:
    """From now on, each DistributedDataParallel of PyTorch's that is made passes the trace points of gradwire's own.

    Nothing tells when one is made, so this function replaces the constructor by one that also adds the hooks of modules. Hooks
    on all modules would do, too, but would cost each call of each module, and torch.compile() warns of them. Call this
    function where the process records its steps.
    """
    construct = DistributedDataParallel.__init__

    @functools.wraps(construct)
    def construct_with_hooks(self: DistributedDataParallel, *arguments: Any, **options: Any) -> None:
        construct(self, *arguments, **options)
        self.register_forward_pre_hook(_forward_begins)
        self.register_forward_hook(_forward_ends)

    DistributedDataParallel.__init__ = construct_with_hooks  # type: ignore[method-assign]


def _forward_begins(ddp: Module, inputs: Any) -> None:
    if torch.is_grad_enabled():
        _C.pass_ddp_point("forward")


def _forward_ends(ddp: Module, inputs: Any, output: Any) -> None:
    if not torch.is_grad_enabled() or not ddp.require_backward_grad_sync:
        return
    backward = _Backward()
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            leaf.register_hook(backward.begins)  # type: ignore[no-untyped-call]


class _Backward:
    """The backward pass that a forward pass of DistributedDataParallel leads to."""

    def __init__(self) -> None:
        self._runs = False

    def begins(self, _: Tensor) -> None:
        """The first gradient of an output is there."""
        if self._runs:
            return
        self._runs = True
        _C.pass_ddp_point("backward")
        # The engine calls these in order: this one before that of DistributedDataParallel, which waits for the buckets.
        _call_at_the_end(self._computed)

    def _computed(self) -> None:
        _C.pass_ddp_point("wait")
        _call_at_the_end(self._averaged)

    def _averaged(self) -> None:
        _C.pass_ddp_point("finished")
        self._runs = False


def _call_at_the_end(callback: Any) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(callback)
