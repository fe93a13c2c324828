# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""DiLoCo and Streaming DiLoCo (Douillard et al., 2023 and 2025, arXiv:2311.08105 and arXiv:2501.18512)."""
from __future__ import annotations

from typing import Any, Callable, Iterable

import torch
from torch import Tensor

from gradwire import _C
from gradwire._bytes import bytes_of, value_of
from gradwire._C import ProcessGroup
from gradwire._errors import InvalidArgument
from gradwire.distributed._groups import _resolve
from gradwire.distributed.algorithms.model_averaging.utils import listed
from gradwire.distributed.optim._native_averager import NativeAverager

__all__ = ["DilocoAverager"]

_NAME = "DilocoAverager"
_LR = 0.7
_MOMENTUM = 0.9
_PLAIN = (bool, int, float, str, tuple, type(None))


class OuterOptimizer:
    """An outer optimizer as C++ calls it (OuterInPython in python/src/averagers.cc)."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InvalidArgument(
                f"{_NAME}: outer made a {type(optimizer).__name__}; it must make a torch.optim.Optimizer over the "
                "parameters that it gets, such as functools.partial(torch.optim.SGD, lr=0.7).")
        self._optimizer = optimizer

    def step(self) -> None:
        self._optimizer.step()

    def text(self) -> str:
        """The class and those of its options that are the same on all ranks that set the same."""
        kind = type(self._optimizer)
        groups = [
            ", ".join(f"{name} = {value}" for name, value in group.items() if isinstance(value, _PLAIN))
            for group in self._optimizer.param_groups
        ]
        return f"{kind.__module__}.{kind.__qualname__} ({'; '.join(groups)})"

    def save(self) -> bytes:
        return bytes_of(self._optimizer.state_dict())

    def load(self, state: bytes) -> None:
        self._optimizer.load_state_dict(value_of(state))


def _require_outer(lr: float, momentum: float) -> None:
    if not 0 <= lr < float("inf"):
        raise InvalidArgument(f"{_NAME}: outer_lr is {lr}; it must be a number of 0 or more.")
    if not 0 <= momentum < 1:
        raise InvalidArgument(f"{_NAME}: outer_momentum is {momentum}; it must be at least 0 and below 1.")


class DilocoAverager(NativeAverager):
    """Workers far apart train by themselves for many steps, and then average how far they have come.

        diloco = DilocoAverager(model.parameters(), inner_steps=100, hook="int4:memory=error_feedback")
        optimizer = PostLocalSGDOptimizer(torch.optim.AdamW(model.parameters(), 4e-4), diloco)
        for x, y in batches:
            optimizer.zero_grad()
            loss_of(model(x), y).backward()     # no DistributedDataParallel: each worker has gradients of its own
            optimizer.step()                    # every 100th step communicates

    Collective: compares parameters and options, and gives all ranks the parameters of rank 0. All arguments are the same on all
    ranks; MismatchError on all ranks where they differ. Of the outer optimizer the class and the options are compared.
    InvalidArgument for options out of range.

    params: those of the optimizer, in the same order; parameters, or groups of them.
    inner_steps: the number of steps between two exchanges of a parameter (H in the paper). At least 1.
    fragments: the parameters are divided into so many parts of about equal size, whose exchanges are spread evenly over the inner
        steps. From 1 to inner_steps.
    overlap: for how many steps an exchange may go on beside training. From 0 to inner_steps - 1; more than 0 needs a group that
        can be duplicated, UnsupportedError otherwise.
    mixing: what a parameter keeps of its own value when the outer step arrives. In [0, 1); 0.5 with overlap in the paper.
    hook: how the differences are averaged: a name with options, as gradwire.hooks.make() takes it.
    outer_lr, outer_momentum: of the outer optimizer, which is SGD with a Nesterov momentum. None: 0.7 and 0.9, as in the paper.
    outer: makes another outer optimizer over a list of tensors: functools.partial(torch.optim.Adam, lr=0.1). It is called once for
        each fragment, and for each dtype and device there.
    process_group: None: the default group. In an elastic job Elastic.group; then give the optimizer to Elastic.add().

    docs/optim.md and docs/elastic.md have the promises and the costs.
    """

    _native: _C.optim.DilocoAverager

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        inner_steps: int = 100,
        *,
        fragments: int = 1,
        overlap: int = 0,
        mixing: float = 0.0,
        hook: str = "allreduce",
        outer_lr: float | None = None,
        outer_momentum: float | None = None,
        outer: Callable[[list[Tensor]], torch.optim.Optimizer] | None = None,
        process_group: ProcessGroup | None = None,
    ) -> None:
        if not isinstance(hook, str):
            raise InvalidArgument(
                f"{_NAME}: hook is a {type(hook).__name__}; give the text that gradwire.hooks.make() takes, such as "
                "'int8', because each fragment has a hook of its own.")
        if outer is not None and (outer_lr is not None or outer_momentum is not None):
            raise InvalidArgument(
                f"{_NAME}: outer makes the outer optimizer; give the learning rate and the momentum to that optimizer, "
                "in place of outer_lr and outer_momentum.")
        lr = _LR if outer_lr is None else outer_lr
        momentum = _MOMENTUM if outer_momentum is None else outer_momentum
        _require_outer(lr, momentum)
        group = _resolve(process_group)
        super().__init__(
            _C.optim.DilocoAverager(
                listed(params), group, inner_steps, fragments, overlap, mixing, hook, lr, momentum,
                None if outer is None else lambda tensors: OuterOptimizer(outer(tensors)),
            ),
            group,
        )

    def finish_exchanges(self) -> None:
        """Waits for the exchanges under way and ends them: at the end of training. All ranks call it after the same step."""
        self._native.finish_exchanges()

    def outer_parameters(self) -> list[Tensor]:
        """What all workers agreed on last, in the order of params: what to evaluate and to publish. Not a copy."""
        return self._native.outer_parameters()

    def payload_bytes(self) -> int:
        """The bytes that this rank has sent, for the exchanges and for the comparison at the beginning."""
        return self._native.payload_bytes()
