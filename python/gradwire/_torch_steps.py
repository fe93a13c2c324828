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

from gradwire import _C

__all__ = ["record_steps"]


@functools.cache
def record_steps() -> None:
    """From now on, each DistributedDataParallel of PyTorch's that is made passes the trace points of gradwire's own.

    Nothing tells when one is made, so this function replaces the constructor by one that also adds hooks. Call this function
    where the process records its steps, before the first group over gradwire is there.
    """
    construct = DistributedDataParallel.__init__

    @functools.wraps(construct)
    def construct_with_hooks(self: DistributedDataParallel, *arguments: Any, **options: Any) -> None:
        construct(self, *arguments, **options)
        passes = _Passes()
        self.register_forward_pre_hook(passes.forward_begins)
        for parameter in self.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(passes.gradient_came)  # type: ignore[no-untyped-call]

    DistributedDataParallel.__init__ = construct_with_hooks  # type: ignore[method-assign]


class _Passes:
    """The passes through one DistributedDataParallel."""

    def __init__(self) -> None:
        self._averages = False  # the backward pass that the last forward pass leads to
        self._runs = False  # that backward pass, or a part of it

    def forward_begins(self, ddp: Module, inputs: Any) -> None:
        if torch.is_grad_enabled():
            _C.pass_ddp_point("forward")
            self._averages = bool(ddp.require_backward_grad_sync)
            self._runs = False

    def gradient_came(self, parameter: Tensor) -> None:
        # Compiled autograd traces this function, and cannot trace what it calls. The step has no phases then.
        if self._runs or not self._averages or torch.compiler.is_compiling():
            return
        self._runs = True
        _C.pass_ddp_point("backward")
        # The engine calls these at the end of the pass, in order: the first before DistributedDataParallel waits for its
        # buckets, because it asks for that with its last gradient, and the second after. A re-entrant checkpoint is a pass
        # within the pass; after its end there may be more gradients.
        _call_at_the_end(self._gradients_came)

    def _gradients_came(self) -> None:
        _C.pass_ddp_point("wait")
        _call_at_the_end(self._finished)

    def _finished(self) -> None:
        _C.pass_ddp_point("finished")
        self._runs = False


def _call_at_the_end(callback: Any) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(callback)
