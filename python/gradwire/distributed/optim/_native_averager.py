# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What averagers of the C++ runtime have in common."""
from __future__ import annotations

from typing import Any

from torch import Tensor

from gradwire import _C
from gradwire._C import ProcessGroup
from gradwire._errors import InvalidArgument
from gradwire.distributed.algorithms.model_averaging.averagers import ModelAverager, Parameters
from gradwire.distributed.algorithms.model_averaging.utils import listed

__all__ = ["NativeAverager"]


class NativeAverager(ModelAverager):
    """An averager that the C++ runtime has made for the parameters that it averages."""

    def __init__(self, native: _C.optim.NativeAverager, process_group: ProcessGroup) -> None:
        self._native = native
        self.process_group = process_group

    @property
    def step(self) -> int:
        """The number of steps so far. Setting it to a number below 0 raises InvalidArgument."""
        return self._native.step()

    @step.setter
    def step(self, step: int) -> None:
        self._native.set_step(step)

    def average_parameters(self, params: Parameters) -> None:
        """Ends a step. params: all parameters that the averager was made for, or groups of them, in the same order."""
        self._native.average_parameters(listed(params))

    def abort(self, reason: str) -> None:
        """Tells the ranks that exchange with this one that this rank cannot go on: they get a PeerError with the reason."""
        self._native.abort(reason)

    def state_dict(self) -> dict[str, Any]:
        """What this rank needs to continue with the same bits: "step", and under "averager" the rest as one tensor of bytes.

        Each rank saves and loads its own, on the same number of ranks. Does not communicate.
        """
        return {"step": self.step, "averager": self._native.save()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over what state_dict() of the same rank returned.

        Raises InvalidArgument, and changes nothing, for a state of other parameters or other options.
        """
        saved = state_dict.get("averager")
        if not isinstance(saved, Tensor):
            name = type(self).__name__
            raise InvalidArgument(f"{name}: the state has no 'averager'; no {name} saved it.")
        self._native.load(saved)
