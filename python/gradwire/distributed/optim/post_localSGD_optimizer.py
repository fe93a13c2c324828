# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""An optimizer for post-local SGD (Lin et al., 2018, arXiv:1808.07217), and for workers far apart."""
from __future__ import annotations

import warnings
from typing import Any

import torch

from gradwire._bytes import bytes_of, value_of
from gradwire.distributed.algorithms.model_averaging.averagers import ModelAverager

__all__ = ["PostLocalSGDOptimizer"]


class PostLocalSGDOptimizer(torch.optim.Optimizer):
    """Steps `optim`, then lets `averager` average the parameters when it is time.

        state = PostLocalSGDState(process_group=None, subgroup=subgroup, start_localSGD_iter=100)
        model.register_comm_hook(state, post_localSGD_hook)
        optimizer = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), 0.1), PeriodicModelAverager(4, 100))

    With a DilocoAverager or a GossipAverager, workers far apart train by themselves and exchange once in many steps.
    """

    def __init__(self, optim: torch.optim.Optimizer, averager: ModelAverager) -> None:
        self.optim = optim
        self.param_groups = optim.param_groups
        self.averager = averager

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The optimizer's."""
        return self.optim.state

    def __getattr__(self, name: str) -> Any:
        """What this class lacks is the optimizer's: `defaults`, which schedulers read, and the hooks of steps."""
        if name == "optim":  # copy and pickle ask before there is one
            raise AttributeError(name)
        return getattr(self.optim, name)

    def __repr__(self) -> str:
        return repr(self.optim)

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's and the averager's: its step under "step", and more state under "averager"."""
        return {**self.optim.state_dict(), **self.averager.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Without "step" the averager begins at 0, with a warning; one with more state raises InvalidArgument."""
        self.averager.load_state_dict(state_dict)
        self._load_inner({key: value for key, value in state_dict.items() if key not in ("step", "averager")})
        if "step" not in state_dict:
            warnings.warn("PostLocalSGDOptimizer: the state has no step; the averager begins at 0.", stacklevel=2)

    def step(self, closure: Any = None) -> Any:
        """The optimizer's step, then the averager's. Collective where it averages.

        When the optimizer or the closure raises, nothing is averaged, and the averager tells the other ranks where it can.
        """
        try:
            loss = self.optim.step(closure)
        except BaseException as error:
            self.averager.abort(f"{type(error).__name__}: {error}")
            raise
        self.averager.average_parameters(self.optim.param_groups)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zeroes the gradients, or sets them to None, as the inner optimizer does."""
        self.optim.zero_grad(set_to_none=set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds the parameters to the inner optimizer."""
        self.optim.add_param_group(param_group)

    def _load_inner(self, state_dict: dict[str, Any]) -> None:
        self.optim.load_state_dict(state_dict)
        self.param_groups = self.optim.param_groups

    # For an elastic job (SeparateOptimizerInPython in python/src/averagers.cc): what all workers have in common.

    def _save_options(self) -> bytes:
        return bytes_of({**self.optim.state_dict(), "state": {}})

    def _load_options(self, options: bytes) -> None:
        """The inner optimizer remembers nothing from before."""
        self._load_inner(value_of(options))
