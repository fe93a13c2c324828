# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""PowerSGD: gradients travel as products of two narrow matrices (Vogels, Karimireddy, Jaggi, 2019, arXiv:1905.13727)."""
from __future__ import annotations

from typing import Any

import torch

from gradwire import _C
from gradwire._C import ProcessGroup
from gradwire._errors import InvalidArgument
from gradwire.distributed.algorithms.ddp_comm_hooks._native import NativeHook, group_of

__all__ = ["PowerSGDState", "batched_powerSGD_hook", "powerSGD_hook"]


class PowerSGDState:
    """The options and the memory of one DDP's hook; the same options on all ranks.

    process_group: what collectives go through; None: DDP's own. It may be set until a hook uses the state; the other
        options may only be read.
    matrix_approximation_rank: more is closer to the gradient and costs more.
    start_powerSGD_iter: plain averaging before that iteration; at least 2 with error feedback or warm start.
    min_compression_rate: what a gradient must at least shrink by to be compressed.
    use_error_feedback: add what compression lost to the next step's gradient.
    warm_start: begin with the factor of the step before instead of a random one.
    orthogonalization_epsilon: added to norms that columns are divided by; not needed against zero columns.
    random_seed: of random factors; a bucket that needs one draws as PyTorch's does.
    batch_tensors_with_same_shape: gradients of one shape draw their random factors in one piece.

    What it remembers belongs to parameters by name, so it outlives a rebuild of the buckets. It can be pickled (without
    its group), and has state_dict().
    """

    def __init__(
        self,
        process_group: ProcessGroup | None,
        matrix_approximation_rank: int = 1,
        start_powerSGD_iter: int = 1_000,
        min_compression_rate: float = 2,
        use_error_feedback: bool = True,
        warm_start: bool = True,
        orthogonalization_epsilon: float = 0,
        random_seed: int = 0,
        compression_stats_logging_frequency: int = 10_000,
        batch_tensors_with_same_shape: bool = False,
    ) -> None:
        if start_powerSGD_iter <= 1 and (use_error_feedback or warm_start):
            what = " and ".join(
                name for name, on in (("use_error_feedback", use_error_feedback), ("warm_start", warm_start)) if on
            )
            raise InvalidArgument(
                f"PowerSGDState: start_powerSGD_iter = {start_powerSGD_iter}, but with {what} it must be at least 2: "
                "buckets are rebuilt after the first iteration."
            )
        self._arguments: dict[str, Any] = {
            "matrix_approximation_rank": matrix_approximation_rank,
            "start_powerSGD_iter": start_powerSGD_iter,
            "min_compression_rate": min_compression_rate,
            "use_error_feedback": use_error_feedback,
            "warm_start": warm_start,
            "orthogonalization_epsilon": orthogonalization_epsilon,
            "random_seed": random_seed,
            "compression_stats_logging_frequency": compression_stats_logging_frequency,
            "batch_tensors_with_same_shape": batch_tensors_with_same_shape,
        }
        self._is_used = False
        self._make(group_of(process_group))

    def _make(self, group: ProcessGroup | None) -> None:
        options = _C.hooks.PowerSGDOptions()
        for name, value in self._arguments.items():
            setattr(options, "start_iteration" if name == "start_powerSGD_iter" else name, value)
        self._group = group
        self._native = _C.hooks.PowerSGDState(options, group)

    def _for_a_hook(self) -> Any:
        self._is_used = True
        return self._native

    @property
    def process_group(self) -> ProcessGroup | None:
        return self._group

    @process_group.setter
    def process_group(self, group: Any) -> None:
        if self._is_used:
            raise InvalidArgument("PowerSGDState: a hook uses this state; set process_group before, or make another state.")
        memory = self.state_dict()
        self._make(group_of(group))
        self.load_state_dict(memory)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_arguments", {}):
            raise InvalidArgument(f"PowerSGDState: {name} cannot be changed; make another state.")
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        arguments = self.__dict__.get("_arguments", {})
        if name in arguments:
            return arguments[name]
        raise AttributeError(f"PowerSGDState has no attribute {name!r}")

    @property
    def iter(self) -> int:
        """Iterations begun so far."""
        return int(self._native.iterations())

    def compression_stats(self) -> tuple[float, int, int]:
        """(elements before / after, before, after) of the iterations that compressed."""
        return self._native.compression_stats()

    def error(self, parameter: str) -> torch.Tensor | None:
        """A copy of what compression has lost of a parameter's gradient on this rank; None where there is none."""
        return self._native.error(parameter)

    def state_dict(self) -> dict[str, Any]:
        """What it remembers, on the CPU. Keys that begin with "local/" are this rank's own."""
        return self._native.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replaces what it remembers; the options must be those of the state's."""
        self._native.load_state_dict(state)

    def __getstate__(self) -> dict[str, Any]:
        return {"arguments": self._arguments, "memory": self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(None, **state["arguments"])  # type: ignore[misc]
        self.load_state_dict(state["memory"])


powerSGD_hook = NativeHook(
    "powerSGD_hook",
    lambda state: _C.hooks.make_power_sgd_hook(state._for_a_hook()),
    """Averages each gradient as a product of two matrices of `state.matrix_approximation_rank` columns.""",
)


batched_powerSGD_hook = NativeHook(
    "batched_powerSGD_hook",
    lambda state: _C.hooks.make_batched_power_sgd_hook(state._for_a_hook()),
    """PowerSGD of the whole bucket as one square matrix: faster than powerSGD_hook, and less accurate.""",
)
