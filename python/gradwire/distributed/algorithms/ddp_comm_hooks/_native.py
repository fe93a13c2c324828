# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""How a hook of this package becomes one of the C++ runtime.

A hook is a callable (state, bucket) that returns a torch.futures.Future of one tensor, as in PyTorch. Hooks of this
package also know the hook of the C++ runtime that does the same; DistributedDataParallel takes that one, so that no
Python runs in the backward pass.
"""
from __future__ import annotations

from typing import Any, Callable

import torch
from torch.futures import Future

from gradwire import _C
from gradwire._C import CommHook, GradBucket, ProcessGroup
from gradwire._errors import InvalidArgument

Hook = Callable[[Any, GradBucket], Future[torch.Tensor]]


def native(make: Callable[[Any], CommHook]) -> Callable[[Hook], Hook]:
    """Decorates a hook with what makes its C++ twin out of its state."""

    def decorate(hook: Hook) -> Hook:
        hook.make_native = make  # type: ignore[attr-defined]
        return hook

    return decorate


def groups_in(state: Any) -> list[ProcessGroup]:
    """The groups that a state holds: DDP makes duplicates of them for its lanes."""
    held = [state] if isinstance(state, ProcessGroup) else list(getattr(state, "__dict__", {}).values())
    return [group for group in held if isinstance(group, ProcessGroup)]


def native_hook(state: Any, hook: Hook | CommHook) -> CommHook:
    """The hook of the C++ runtime for what register_comm_hook(state, hook) gets."""
    if isinstance(hook, CommHook):
        return hook
    if not callable(hook):
        raise TypeError(f"a hook must be callable (state, bucket), but {type(hook).__name__} is not.")
    make = getattr(hook, "make_native", None)
    if make is not None:
        return make(state)
    name = getattr(hook, "__qualname__", type(hook).__name__)
    safe = bool(getattr(hook, "parallel_safe", False))
    single = bool(getattr(hook, "single_collective", False))
    return _C.make_python_hook(state, hook, name, safe, single, groups_in(state))


def group_of(state: Any) -> ProcessGroup | None:
    """The process group that is a hook's whole state."""
    if state is None or isinstance(state, ProcessGroup):
        return state
    raise InvalidArgument(f"the state of this hook is a process group or None, not a {type(state).__name__}.")
