# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Parameters that one rank steps for all, and the options of parameter groups."""
from __future__ import annotations

import contextlib
from typing import Any, Iterator, Sequence

from torch import Tensor
from torch.optim import Optimizer

from gradwire import _C

# Of a parameter group, what is no option.
_PARAMETERS = ("params", "param_names")


def options_of(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in _PARAMETERS}


def copy_options(source: list[dict[str, Any]], target: list[dict[str, Any]]) -> None:
    for group, other in zip(source, target):
        other.update(options_of(group))


@contextlib.contextmanager
def lent_gradients(parameters: list[Tensor], gradients: Sequence[Tensor | None]) -> Iterator[None]:
    """Within, the gradients are the parameters' .grad; afterwards that is what it was: DDP writes there later."""
    before = [parameter.grad for parameter in parameters]
    for parameter, gradient in zip(parameters, gradients):
        parameter.grad = gradient
    try:
        yield
    finally:
        for parameter, old in zip(parameters, before):
            parameter.grad = old


class Piece:
    """Parameters that one rank steps together. All ranks have the same pieces in the same order: one a rank, or,
    overlapped with DDP, one for each bucket and rank."""

    def __init__(self, owner: int, packs: bool) -> None:
        self.owner = owner
        self.parameters: list[Tensor] = []
        self.shared = _C.optim.SharedParameters(packs)  # the same parameters, for the other ranks
        self.optim: Optimizer | None = None  # on its owner
        self.slots: list[int] = []  # overlapped: places in the bucket
