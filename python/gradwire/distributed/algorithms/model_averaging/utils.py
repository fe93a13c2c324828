# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What averagers are made of."""
from __future__ import annotations

from typing import Any, Iterable, Iterator

import torch

from gradwire._C import ProcessGroup, ReduceOp
from gradwire.distributed._collectives import all_reduce

__all__ = ["average_parameters", "average_parameters_or_parameter_groups", "get_params_to_average"]


def get_params_to_average(params: Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]]) -> list[torch.nn.Parameter]:
    """The parameters that have a gradient, out of parameters or of an optimizer's groups of them."""
    found: list[torch.nn.Parameter] = []
    for item in params:
        for parameter in item["params"] if isinstance(item, dict) else [item]:
            if parameter.grad is not None:
                found.append(parameter)
    return found


def average_parameters(params: Iterator[torch.nn.Parameter], process_group: ProcessGroup | None = None) -> None:
    """The mean over the ranks, in place; one collective for each dtype. All ranks bring the same parameters."""
    by_dtype: dict[torch.dtype, list[torch.nn.Parameter]] = {}
    for parameter in params:
        by_dtype.setdefault(parameter.dtype, []).append(parameter)
    with torch.no_grad():
        for parameters in by_dtype.values():
            flat = torch.cat([parameter.reshape(-1) for parameter in parameters])
            all_reduce(flat, ReduceOp.AVG, process_group)
            for parameter, mean in zip(parameters, torch.split(flat, [p.numel() for p in parameters])):
                parameter.copy_(mean.view_as(parameter))


def average_parameters_or_parameter_groups(
    params: Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]], process_group: ProcessGroup | None = None
) -> None:
    """average_parameters() of those that have a gradient."""
    average_parameters(iter(get_params_to_average(params)), process_group)
