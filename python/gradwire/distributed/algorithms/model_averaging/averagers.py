# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""When models are averaged."""
from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import Any, Iterable

import torch

from gradwire import _C
from gradwire._C import ProcessGroup
from gradwire._errors import InvalidArgument
from gradwire.distributed._groups import _resolve
from gradwire.distributed.algorithms.model_averaging.utils import listed

__all__ = ["ModelAverager", "PeriodicModelAverager"]

Parameters = Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]]


def average_at(averager: ModelAverager, params: Parameters, group: ProcessGroup | None) -> None:
    """Averages those that have a gradient, when all ranks are at this step and have gradients of the same ones."""
    name = type(averager).__name__
    if not _C.optim.average_with_gradients(name, listed(params), _resolve(group), averager.step):
        warnings.warn(
            f"{name}: no parameter has a gradient at an average, so nothing is averaged; clear the gradients after the "
            "average, not before it.", stacklevel=3)


class ModelAverager(ABC):
    """Derive and say when. `step` counts the calls."""

    def __init__(self, process_group: ProcessGroup | None = None) -> None:
        self.process_group = process_group
        self.step = 0

    @abstractmethod
    def average_parameters(self, params: Parameters) -> None:
        """Called once a step, after the optimizer's; collective where it averages."""

    def abort(self, reason: str) -> None:
        """Called when this rank cannot go on: tells the ranks that average with it, where it can. Here it does nothing."""

    def state_dict(self) -> dict[str, Any]:
        """What the averager needs to continue: "step". An averager with more state has it under "averager"."""
        return {"step": self.step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over what state_dict() returned. Without "step" the averager begins at 0."""
        self.step = state_dict.get("step", 0)


class PeriodicModelAverager(ModelAverager):
    """Averages over the ranks at step `warmup_steps` and every `period` steps from there; the first step is 0."""

    def __init__(self, period: int, warmup_steps: int = 0, process_group: ProcessGroup | None = None) -> None:
        super().__init__(process_group)
        if warmup_steps < 0:
            raise InvalidArgument(f"PeriodicModelAverager: warmup_steps = {warmup_steps}; it must not be negative.")
        if period < 1:
            raise InvalidArgument(f"PeriodicModelAverager: period = {period}; it must be at least 1.")
        self.period = period
        self.warmup_steps = warmup_steps

    def average_parameters(self, params: Parameters) -> None:
        """params: all parameters, or an optimizer's groups of them; those without gradient are skipped.

        Raises MismatchError on all ranks, and averages nothing, when ranks are at other steps or have gradients of other
        parameters.
        """
        if self.step >= self.warmup_steps and (self.step - self.warmup_steps) % self.period == 0:
            average_at(self, params, self.process_group)
        self.step += 1
