# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Accelerate, and Hugging Face's Trainer, over gradwire.

    from gradwire.integrations.accelerate import start, use_hook

    start()                                       # before Accelerator(...) or TrainingArguments(...)
    accelerator = Accelerator(cpu=True)           # Trainer: TrainingArguments(use_cpu=True)
    use_hook(accelerator, "int8")                 # Trainer: use_hook(trainer.accelerator, "int8"), before train()
    model, optimizer = accelerator.prepare(model, optimizer)

Accelerate knows backends by a list of names and refuses others, but takes the default group that it finds.
"""
from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed
from accelerate import Accelerator
from accelerate.state import PartialState
from accelerate.utils import DistributedDataParallelKwargs, DistributedType

import gradwire
from gradwire._errors import InvalidArgument, UnsupportedError

__all__ = ["start", "use_hook"]


def start(backend: str = "gradwire", timeout: timedelta | None = None) -> None:
    """Makes the default group of torch.distributed over gradwire, which Accelerate takes. Collective.

    backend: "gradwire"; "cpu:gradwire,cuda:nccl" where the model is on GPUs. timeout: None is torch's.

    Raises InvalidArgument where there is a default group, or an Accelerator, already.
    """
    if torch.distributed.is_initialized():
        raise InvalidArgument(
            f"start: torch.distributed has a default group already, over {torch.distributed.get_backend()!r}; "
            "call start() before anything else makes one."
        )
    if PartialState._shared_state:
        raise InvalidArgument("start: call start() before Accelerator(...), PartialState() or TrainingArguments(...).")
    torch.distributed.init_process_group(backend, timeout=timeout)


class _HookKwargs(DistributedDataParallelKwargs):
    """Options of DistributedDataParallel whose hook is one of gradwire's. Accelerate calls both methods."""

    spec: str = ""

    def to_dict(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        """The options of DistributedDataParallel: all but the hook."""
        values: dict[str, Any] = super().to_dict(*arguments, **options)
        values.pop("spec", None)
        return values

    def register_comm_hook(self, model: Any) -> None:
        model.register_comm_hook(*gradwire.hooks.make(self.spec))


# How Accelerate wraps models in PyTorch's DistributedDataParallel.
_DDP_TYPES = (DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)


def use_hook(accelerator: Accelerator, spec: str) -> None:
    """Models that `accelerator` prepares from now on average their gradients through a hook of gradwire's.

    spec: as of gradwire.hooks.make(): "int8", "power_sgd:rank=4,start=100". Options that were given to `accelerator` as
    DistributedDataParallelKwargs stay.

    Raises InvalidArgument for an unknown hook, where the options name a comm_hook of Accelerate's, or where a model has
    been prepared; UnsupportedError where models are not wrapped in DistributedDataParallel (one rank, FSDP, DeepSpeed).
    """
    gradwire.hooks.make(spec)  # refuses a wrong one
    if accelerator.distributed_type not in _DDP_TYPES:
        raise UnsupportedError(
            f"use_hook: with {accelerator.distributed_type} Accelerate does not wrap models in DistributedDataParallel, so "
            "there is no hook. Over CPUs, start several ranks and call Accelerator(cpu=True), or TrainingArguments(use_cpu=True)."
        )
    if accelerator._models:
        raise InvalidArgument("use_hook: a model has been prepared already; call use_hook() before prepare() or train().")
    given = accelerator.ddp_handler or DistributedDataParallelKwargs()
    if str(given.comm_hook.value) != "no":
        raise InvalidArgument(f"use_hook: the accelerator has the hook {given.comm_hook.value!r} of Accelerate's own.")
    kwargs = _HookKwargs(**{name: value for name, value in vars(given).items() if name != "spec"})
    kwargs.spec = spec
    accelerator.ddp_handler = kwargs
