# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""PyTorch Lightning over gradwire.

    import gradwire.integrations.lightning

    trainer = Trainer(accelerator="cpu", devices=2, strategy="gradwire")
    trainer = Trainer(accelerator="cpu", devices=2, strategy=GradwireStrategy(hook="power_sgd:rank=4,start=100"))

Works with `lightning` and with `pytorch_lightning`: with the one that the program has imported, else with the one that is
installed, `lightning` first.
"""
from __future__ import annotations

import importlib.util
import sys
from typing import Any

import gradwire
from gradwire._errors import InvalidArgument

__all__ = ["GradwireStrategy"]


def _uses_lightning() -> bool:
    """Whether the program's Lightning is the package `lightning`, not `pytorch_lightning`."""
    if "lightning.pytorch" in sys.modules or "pytorch_lightning" in sys.modules:
        return "lightning.pytorch" in sys.modules
    return importlib.util.find_spec("lightning") is not None


if _uses_lightning():
    from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
else:
    from pytorch_lightning.strategies import DDPStrategy, StrategyRegistry


class GradwireStrategy(DDPStrategy):
    """Lightning's DDPStrategy over the backend "gradwire", with a hook that is registered on CPUs, too.

    hook: a spec of gradwire.hooks.make(), "int8" or "top_k:ratio=0.01"; "": plain averaging.
    Other arguments are DDPStrategy's: find_unused_parameters, static_graph, timeout, ... Its own ddp_comm_hook,
    ddp_comm_state and ddp_comm_wrapper, which DDPStrategy ignores on CPUs, raise InvalidArgument beside `hook`.
    process_group_backend: "gradwire", or "cpu:gradwire,cuda:nccl" where the model is on GPUs.

    The strategy has the name "gradwire" in Lightning's registry as soon as this module has been imported, and
    "gradwire_find_unused_parameters_true" with that option.
    """

    def __init__(self, *arguments: Any, hook: str = "", process_group_backend: str = "gradwire", **options: Any) -> None:
        theirs = [name for name in ("ddp_comm_state", "ddp_comm_hook", "ddp_comm_wrapper") if options.get(name)]
        if hook and theirs:
            raise InvalidArgument(f"GradwireStrategy: give either hook or {', '.join(theirs)}.")
        if hook:
            gradwire.hooks.make(hook)  # a wrong spec is refused here, not when training begins
        self._hook = hook
        super().__init__(*arguments, process_group_backend=process_group_backend, **options)

    def _register_ddp_hooks(self) -> None:
        """Lightning calls _register_ddp_hooks() once its model is inside DistributedDataParallel."""
        if self._hook:
            self.model.register_comm_hook(*gradwire.hooks.make(self._hook))
        elif self._ddp_comm_hook is not None and self.root_device.type == "cpu":
            # DDPStrategy leaves hooks out on CPUs.
            hook = self._ddp_comm_wrapper(self._ddp_comm_hook) if self._ddp_comm_wrapper else self._ddp_comm_hook
            self.model.register_comm_hook(self._ddp_comm_state, hook)
        else:
            super()._register_ddp_hooks()


def _register() -> None:
    for name, options in {"gradwire": {}, "gradwire_find_unused_parameters_true": {"find_unused_parameters": True}}.items():
        if name not in StrategyRegistry:
            StrategyRegistry.register(
                name, GradwireStrategy, description='DDPStrategy over the backend "gradwire"', **options
            )


_register()
