# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The optimizer's step inside the backward pass: parameters step as soon as their gradients are averaged.

Do not call a step of your own. What wants all gradients before the step (clipping by global norm, skipping a step
because of an Inf) comes too late here.
"""
from __future__ import annotations

from typing import Any, Callable

import torch
from torch.utils.weak import WeakIdKeyDictionary

from gradwire import _C
from gradwire.distributed.algorithms.ddp_comm_hooks._native import GivenHook, Hook, NativeHook, native_hook

__all__ = ["hook_then_optimizer"]


class _Steps:
    """An optimizer for each parameter, made at its first step."""

    def __init__(self, make_optimizer: Callable[[list[torch.Tensor]], torch.optim.Optimizer]) -> None:
        self._make = make_optimizer
        # By parameter: several models may share a hook, and have equal names.
        self._optimizers: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def __call__(self, _: str, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        if parameter not in self._optimizers:
            # Shares the parameter's memory, but has a .grad of its own: the parameter's belongs to DDP.
            twin = torch.nn.Parameter(parameter.detach())
            self._optimizers[parameter] = twin, self._make([twin])
        twin, optimizer = self._optimizers[parameter]
        twin.data = parameter.detach()  # somebody may have given the parameter other memory
        twin.grad = gradient
        with torch.no_grad():
            optimizer.step()
        twin.grad = None


def hook_then_optimizer(hook: GivenHook, make_optimizer: Callable[[list[torch.Tensor]], torch.optim.Optimizer]) -> Hook:
    """A hook that runs `hook` and then steps each parameter of the bucket by its average.

    make_optimizer: called once a parameter with a list of it, e.g. `lambda params: torch.optim.SGD(params, 0.1)`. For
    optimizers that treat each parameter by itself (all of torch.optim's but LBFGS).
    """
    steps = _Steps(make_optimizer)
    made: dict[int, tuple[Any, Any]] = {}  # with the state, so that no other one gets its id

    def make(state: Any) -> Any:
        if id(state) not in made:
            made[id(state)] = state, _C.hooks.make_hook_then_step(native_hook(state, hook), steps)
        return made[id(state)][1]

    return NativeHook(
        "then_optimizer",
        make,
        """Runs the hook that it was made from, then steps each parameter of the bucket by its average.""",
    )
