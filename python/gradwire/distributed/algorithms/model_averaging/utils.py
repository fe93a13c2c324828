# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What averagers are made of."""
from __future__ import annotations

from typing import Any, Iterable, TypeVar

import torch

from gradwire import _C
from gradwire._C import ProcessGroup
from gradwire.distributed._groups import _resolve

__all__ = ["average_parameters", "average_parameters_or_parameter_groups", "get_params_to_average"]

_Tensor = TypeVar("_Tensor", bound=torch.Tensor)


def listed(params: Iterable[_Tensor] | Iterable[dict[str, Any]]) -> list[_Tensor]:
    """The parameters, out of parameters or of an optimizer's groups of them."""
    found: list[_Tensor] = []
    for item in params:
        found.extend(item["params"] if isinstance(item, dict) else [item])
    return found


def get_params_to_average(params: Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]]) -> list[torch.nn.Parameter]:
    """The parameters that have a gradient, out of parameters or of an optimizer's groups of them."""
    return [parameter for parameter in listed(params) if parameter.grad is not None]


def average_parameters(params: Iterable[torch.nn.Parameter], process_group: ProcessGroup | None = None) -> None:
    """Collective: parameters become their means over the ranks of the group (None: the default one), in place.

    Each is divided by the number of ranks in its own dtype, then summed; in messages of at most 25 MiB. All ranks bring
    the same parameters: MismatchError or PeerError otherwise.
    """
    _C.optim.average_parameters(list(params), _resolve(process_group))


def average_parameters_or_parameter_groups(
    params: Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]], process_group: ProcessGroup | None = None
) -> None:
    """average_parameters() of those that have a gradient, which must be the same on all ranks: MismatchError otherwise.

    params: all parameters. A rank without any gradient makes the call too.
    """
    _C.optim.average_with_gradients(
        "average_parameters_or_parameter_groups()", listed(params), _resolve(process_group), 0)
