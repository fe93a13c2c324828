# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""How a hook of this package becomes one of the C++ runtime.

A hook is a callable (state, bucket) that returns a torch.futures.Future of one tensor, as in PyTorch. Hooks of this
package also know the hook of the C++ runtime that does the same; DistributedDataParallel takes that one, so that no
Python runs in the backward pass.
"""
from __future__ import annotations

import inspect
import weakref
from typing import Any, Callable

import torch
import torch.distributed
from torch.futures import Future
from torch.utils.weak import WeakIdKeyDictionary

from gradwire import _C
from gradwire._C import CommHook, GradBucket, ProcessGroup
from gradwire._errors import InvalidArgument

Hook = Callable[[Any, GradBucket], Future[torch.Tensor]]
# What a program may give: the tensor will do.
GivenHook = Callable[[Any, GradBucket], Future[torch.Tensor] | torch.Tensor]

# Annotations of a hook's bucket: ours, or PyTorch's where a program changed its imports in part.
_GRAD_BUCKETS = (GradBucket, torch.distributed.GradBucket)  # type: ignore[attr-defined]


class NativeHook:
    """A hook that the C++ runtime has, too: DistributedDataParallel takes that one.

    Called, it does the same, in a hook of yours or as a hook of PyTorch's DistributedDataParallel.
    """

    def __init__(self, name: str, make_native: Callable[[Any], CommHook], documentation: str) -> None:
        self.make_native = make_native
        self._name = name
        self.__module__ = make_native.__module__
        # PyTorch goes by names when it refuses bfloat16, which works here.
        self.__name__ = f"gradwire.{name}"
        self.__qualname__ = self.__name__
        self.__doc__ = documentation

    # Without annotations: PyTorch's DistributedDataParallel wants its own there, or none.
    def __call__(self, state, bucket):  # type: ignore[no-untyped-def]
        if isinstance(bucket, GradBucket):
            return self.make_native(state).run(bucket)
        return run_on_torch_bucket(self, state, bucket)

    def __reduce__(self) -> str:
        # By reference, as a function is: the hooks of this package have these names in their modules.
        return self._name

    def __repr__(self) -> str:
        return f"<hook {self.__name__}>"


def groups_in(state: Any) -> list[ProcessGroup]:
    """The groups that a state holds: DDP makes duplicates of them for its lanes."""
    held = [state] if isinstance(state, ProcessGroup) else list(getattr(state, "__dict__", {}).values())
    return [group for group in held if isinstance(group, ProcessGroup)]


def _require_annotations(hook: Any) -> None:
    """Raises InvalidArgument where a hook's own annotations say that it takes or returns something else."""
    try:
        signature = inspect.signature(hook)
    except (TypeError, ValueError, NameError):  # a callable that does not tell
        return
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [parameter for parameter in signature.parameters.values() if parameter.kind in by_place]
    if len(parameters) > 1 and _names_another(parameters[1].annotation, _GRAD_BUCKETS):
        raise InvalidArgument(
            f"a hook gets a gradwire.distributed.GradBucket, but its parameter '{parameters[1].name}' is annotated as "
            f"{parameters[1].annotation.__name__}."
        )
    if _names_another(signature.return_annotation, (Future, torch.Tensor)):
        raise InvalidArgument(
            "a hook returns a torch.futures.Future of one tensor, or the tensor, but it is annotated as returning "
            f"{signature.return_annotation.__name__}."
        )


def _names_another(annotation: Any, right: tuple[type, ...]) -> bool:
    """Whether an annotation is a class that is none of `right`, nor above or below one."""
    # What is no class (a string, a generic), Any and protocols may mean the right one.
    if not isinstance(annotation, type) or annotation in (Any, inspect.Signature.empty):
        return False
    if getattr(annotation, "_is_protocol", False):
        return False
    return not any(issubclass(annotation, each) or issubclass(each, annotation) for each in right)


def native_hook(state: Any, hook: GivenHook | NativeHook | CommHook) -> CommHook:
    """The hook of the C++ runtime for what register_comm_hook(state, hook) gets."""
    if isinstance(hook, CommHook):
        return hook
    if not callable(hook):
        raise TypeError(f"a hook must be callable (state, bucket), but {type(hook).__name__} is not.")
    if isinstance(hook, NativeHook):
        return hook.make_native(state)
    _require_annotations(hook)
    name = getattr(hook, "__qualname__", type(hook).__name__)
    safe = bool(getattr(hook, "parallel_safe", False))
    single = bool(getattr(hook, "single_collective", False))
    return _C.make_python_hook(state, hook, name, safe, single, groups_in(state))


# A group that a hook goes through: gradwire's, or one of torch.distributed.
AnyGroup = Any


def group_of(state: AnyGroup) -> ProcessGroup | None:
    """The process group that is a hook's whole state, gradwire's or PyTorch's; None for None."""
    if state is None or isinstance(state, ProcessGroup):
        return state
    if torch.distributed.is_available() and isinstance(state, torch.distributed.ProcessGroup):
        return adapted(state)
    raise InvalidArgument(f"the state of this hook is a process group or None, not a {type(state).__name__}.")


# Groups of PyTorch's that hooks have used, each with its gradwire group.
_adapted: weakref.WeakKeyDictionary[Any, ProcessGroup] = weakref.WeakKeyDictionary()


def adapted(group: Any) -> ProcessGroup:
    """One gradwire group for a group of PyTorch's, however often it is asked for."""
    if group not in _adapted:
        _adapted[group] = _C.from_c10d(group)
    return _adapted[group]


class _Pass:
    """What a hook under PyTorch's DistributedDataParallel must know of its model, and PyTorch's buckets do not tell."""

    def __init__(self) -> None:
        self.iteration = 0
        self.names: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def name_of(self, parameter: torch.Tensor) -> str:
        # Numbers in the order of first sight: the same on all ranks, and for good when buckets are rebuilt.
        if parameter not in self.names:
            self.names[parameter] = f"parameter{len(self.names)}"
        return str(self.names[parameter])


_passes: weakref.WeakKeyDictionary[Any, _Pass] = weakref.WeakKeyDictionary()


def run_on_torch_bucket(hook: NativeHook, state: Any, bucket: Any) -> Future[torch.Tensor]:
    """One bucket of PyTorch's DistributedDataParallel: over the group in the state, else over PyTorch's default one."""
    made = hook.make_native(state)
    # Only a state that is an object of its own has a memory.
    known = _Pass() if state is None else _passes.setdefault(state, _Pass())
    # PyTorch's buckets do not know the group of their model. What divides must be the size of the group that sums.
    group = _own_group(state, made) or adapted(torch.distributed.group.WORLD)
    parameters = bucket.parameters()
    last = bucket.is_last()
    if bucket.buffer().is_sparse:
        if last:
            known.iteration += 1
        return _average_of_sparse(bucket.buffer(), group)
    ours = _C.make_grad_bucket(
        bucket.index(), bucket.buffer(), parameters, [known.name_of(parameter) for parameter in parameters],
        bucket.gradients(), group, last, known.iteration,
    )
    future = made.run(ours)
    if last:
        known.iteration += 1
    # PyTorch wants a future that holds a Python object.
    return future.then(lambda done: done.value())


def _average_of_sparse(gradient: torch.Tensor, group: ProcessGroup) -> Future[torch.Tensor]:
    """As our DistributedDataParallel does with the gradients of a sparse embedding, whatever the hook."""
    _C.all_reduce_sparse(gradient, group)
    future: Future[torch.Tensor] = Future()
    future.set_result(gradient.div_(group.size()))
    return future


def _own_group(state: Any, made: CommHook) -> ProcessGroup | None:
    """The group that a state names as the model's; a state may hold others beside it."""
    if _is_group(state) or state is None:
        return group_of(state)
    if isinstance(state, CommHook):
        held = made.groups
    elif hasattr(state, "process_group"):
        return group_of(state.process_group)
    else:
        held = groups_in(state)
    return held[0] if held else None


def _is_group(state: Any) -> bool:
    return isinstance(state, (ProcessGroup, torch.distributed.ProcessGroup))
