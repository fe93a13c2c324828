# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""gradwire's hooks, each as (state, hook) for register_comm_hook():

    model.register_comm_hook(*gradwire.hooks.power_sgd(rank=4))
    model.register_comm_hook(*gradwire.hooks.make("top_k:ratio=0.01,memory=ef21"))
"""
from __future__ import annotations

from typing import Any, Callable, Iterable, Sequence

import torch

from gradwire import _C
from gradwire._C import CommHook
from gradwire.distributed.algorithms.ddp_comm_hooks._native import AnyGroup, GivenHook, Hook, NativeHook, group_of, native_hook
from gradwire.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
    PowerSGDState,
    batched_powerSGD_hook,
    powerSGD_hook,
)

__all__ = [
    "auto", "batched_power_sgd", "checking", "clip_grad_norm", "compressed", "known", "logging", "make", "names",
    "power_sgd", "reduce_gradients",
]

Registration = tuple[Any, Hook]


run = NativeHook(
    "run",
    lambda state: state,
    """The hook whose state is a hook of the C++ runtime.""",
)


def names() -> list[str]:
    """The names that make() knows."""
    return list(_C.hooks.hook_names())


def known() -> list[tuple[str, str, str, str]]:
    """(name, options with their defaults, bytes that a rank sends, paper) of each hook."""
    return list(_C.hooks.known_hooks())


def make(spec: str, group: AnyGroup | None = None) -> Registration:
    """A hook by name, with options: "fp16_compress", "power_sgd:rank=4,start=10", "int8", "top_k:ratio=0.01".

    group: what the hook goes through, gradwire's or one of torch.distributed. None: the model's own; under PyTorch's
    DistributedDataParallel, which does not tell hooks its process_group, the default group.
    Every hook takes warm_up=N (plain averaging before iteration N), min=64Ki (smaller buckets are averaged plainly) and
    wrap=fp16 or bf16. Raises InvalidArgument that lists the right names, or the options of the hook.
    """
    return _C.hooks.make_hook(spec, group_of(group)), run


def auto(
    accuracy: str = "rounding",
    hooks: Sequence[str] = (),
    gain: float = 0.01,
    group: AnyGroup | None = None,
    shape: bool = True,
) -> Registration:
    """Measures hooks in the first steps of a job, goes on with the fastest, and follows the link when it changes.

    accuracy: "exact" (the bits of plain averaging), "rounding" (also bf16_compress and int8) or "any" (also int4,
    power_sgd:rank=4 and one_bit). hooks: names as of make(), instead of those; a later one is taken only when it saves
    more than the share `gain` of a step. The hooks are measured when the longest of their warm-ups (start, warm_up) is
    over. shape: gradwire's DistributedDataParallel lets the hook choose the size of the buckets and the number of lanes
    too, unless bucket_cap_mb or lanes is given. The state has `current`, the name of the hook in use, `current_shape`,
    and `choices`, the decisions with what was measured. All ranks decide alike.
    """
    return _C.hooks.make_auto_hook(accuracy, list(hooks), gain, group_of(group), shape), run


def auto_candidates(accuracy: str = "rounding") -> list[str]:
    """The hooks that auto(accuracy) chooses from, as make() takes them."""
    return _C.hooks.auto_hook_candidates(accuracy)


def power_sgd(rank: int = 1, start: int = 1000, group: AnyGroup | None = None, **options: Any) -> Registration:
    """PowerSGD with products of `rank` columns from iteration `start` on; options as of PowerSGDState."""
    return PowerSGDState(group, rank, start, **options), powerSGD_hook


def batched_power_sgd(
    rank: int = 1, start: int = 1000, group: AnyGroup | None = None, **options: Any
) -> Registration:
    """PowerSGD of each bucket as one square matrix, from iteration `start` on; options as of PowerSGDState."""
    return PowerSGDState(group, rank, start, **options), batched_powerSGD_hook


def compressed(description: str, plain_vectors: bool = False, group: AnyGroup | None = None) -> Registration:
    """Any compressor as a hook: "int4:block=64,memory=ef21". plain_vectors: biases and norms go uncompressed."""
    return _C.hooks.make_compressed_hook(description, plain_vectors, group_of(group)), run


def checking(state: Any, hook: GivenHook | CommHook) -> Registration:
    """Runs the hook, then compares what all ranks hold, bit for bit; MismatchError on all where they differ."""
    return _C.hooks.make_checking_hook(native_hook(state, hook)), run


def logging(state: Any, hook: GivenHook | CommHook, sink: Callable[[dict[str, Any]], None]) -> Registration:
    """Runs the hook and calls `sink` with a record of each bucket: iteration, bucket, numel, norms, seconds."""
    return _C.hooks.make_logging_hook(native_hook(state, hook), sink), run


def clip_grad_norm(
    parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float, norm_type: float = 2.0
) -> float:
    """Scales gradients down to a common norm of `max_norm`; returns the norm before.

    Summed in float64 in a fixed order, so ranks with the same gradients get the same bits. norm_type: 2 or infinity.
    """
    if norm_type not in (2.0, float("inf")):
        raise ValueError("clip_grad_norm: norm_type must be 2 or infinity.")
    tensors = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    return float(_C.hooks.clip_grad_norm(tensors, max_norm, norm_type != 2.0))


def reduce_gradients(
    named_parameters: Iterable[tuple[str, torch.Tensor]],
    state: Any = None,
    hook: GivenHook | CommHook | None = None,
    group: AnyGroup | None = None,
    iteration: int = 0,
) -> None:
    """Averages gradients at once, without DistributedDataParallel, through a hook (None: plain); collective."""
    native_one = None if hook is None else native_hook(state, hook)
    _C.hooks.reduce_gradients(list(named_parameters), native_one, group_of(group), iteration)
