# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Which modules DistributedDataParallel can average, and whether one has changed since."""
from __future__ import annotations

import operator

import torch
from torch.nn import Module

from gradwire._errors import InvalidArgument, UnsupportedError


def require_usable(module: Module, alone: bool) -> None:
    for name, parameter in module.named_parameters():
        if torch.nn.parameter.is_lazy(parameter):
            raise InvalidArgument(
                f"DistributedDataParallel: the parameter '{name}' has no shape yet (a lazy module); run a forward pass of the "
                "module before wrapping it."
            )
    for name, part in module.named_modules() if not alone else ():
        if isinstance(part, torch.nn.SyncBatchNorm) and part.training and not (
            torch.distributed.is_available() and torch.distributed.is_initialized()
        ):
            raise UnsupportedError(
                f"DistributedDataParallel: '{name}' is a torch.nn.SyncBatchNorm, which synchronizes over torch.distributed's "
                "groups alone, and there is none: each rank would normalize by its own samples. Convert the module with "
                "gradwire.nn.SyncBatchNorm.convert_sync_batchnorm()."
            )


def require_steps_after_averaging(parameters: list[torch.nn.Parameter]) -> None:
    """PyTorch's DDP makes the optimizers of torch.distributed.optim._apply_optimizer_in_backward() wait for averages."""
    if any(hasattr(parameter, "_in_backward_optimizers") for parameter in parameters):
        raise UnsupportedError(
            "DistributedDataParallel: parameters have optimizers of _apply_optimizer_in_backward(), which would step by this "
            "rank's own gradients, before these are averaged. Use hook_then_optimizer() of "
            "gradwire.distributed.algorithms.ddp_comm_hooks.optimizer_overlap_hooks, which steps by averages."
        )


def sparse_weights(module: Module) -> set[str]:
    """Names of the weights whose gradients are sparse."""
    makers = [m for m in module.modules() if isinstance(m, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and m.sparse]
    weights = {id(maker.weight) for maker in makers}
    return {name for name, parameter in module.named_parameters() if id(parameter) in weights}


class ParameterWatch:
    """Notices parameters that were replaced or added after DistributedDataParallel was made, which does not average them."""

    def __init__(self, module: Module, ignored: set[str]) -> None:
        self._ignored = ignored
        self._known = {id(parameter): parameter for parameter in module.parameters()}
        self._look(module)

    def _look(self, module: Module) -> None:
        self._module = module
        self._frozen = [  # came later, and need no gradient yet
            parameter for name, parameter in module.named_parameters()
            if id(parameter) not in self._known and not parameter.requires_grad and name not in self._ignored
        ]
        tables = [table for part in module.modules() for table in (part._parameters, part._modules)]
        self._seen = [(table, list(table.values())) for table in tables]

    def require_known(self, module: Module, rank: int) -> None:
        is_as_before = module is self._module and all(
            len(table) == len(values) and all(map(operator.is_, table.values(), values)) for table, values in self._seen
        )
        if is_as_before and not any(parameter.requires_grad for parameter in self._frozen):
            return
        all_are_own = True
        for name, tensor in module.named_parameters():
            # functional_call() puts plain tensors there for one pass, which is the caller's own.
            all_are_own = all_are_own and isinstance(tensor, torch.nn.Parameter)
            unknown = isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad and id(tensor) not in self._known
            if unknown and name not in self._ignored:
                raise InvalidArgument(
                    f"Parameter '{name}' of the module on rank {rank} was replaced or added after DistributedDataParallel "
                    "was made, which therefore does not average it. Change the values of parameters in place "
                    "(load_state_dict() without assign does), or wrap the module again."
                )
        if all_are_own:
            self._look(module)
