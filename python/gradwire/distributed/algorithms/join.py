# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Training on uneven inputs: ranks that have run out of them go on taking part in the others' collectives."""
from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Callable, Sequence

import torch

from gradwire import _C
from gradwire._C import ProcessGroup
from gradwire._errors import InvalidArgument

__all__ = ["Join", "JoinHook", "Joinable", "JoinableStep"]


class JoinHook:
    """What one joinable does in a Join. The methods do nothing, and return False, unless overridden."""

    def main_hook(self) -> None:
        """On a rank that has no more inputs: makes the collectives that the other ranks make in one iteration, in the same order."""

    def post_hook(self, is_last_joiner: bool) -> None:
        """Once, on every rank, when all are out of inputs. is_last_joiner: this rank had one in the last iteration."""

    def is_unfinished(self, begun: bool) -> bool:
        """Whether this rank, which has inputs, still has to make collectives of the present iteration, for which ranks
        without inputs wait. begun: the joinable has called notify_join_context() in it. Join asks before it lets another
        joinable, or the next iteration, begin."""
        return False

    def abandon_hook(self, begun: bool, what: str) -> bool:
        """This rank leaves the Join with an error, `what`: tells the ranks that wait for its collectives of the present
        iteration. Returns whether it has told them; then the hooks of the joinables behind this one are not called. begun: as
        above, or main_hook() was called."""
        return False


class Joinable(ABC):
    """What can take part in a Join. A class of yours calls `Joinable.__init__(self)`, has join_hook() and the two
    properties, and calls `Join.notify_join_context(self)` before the collectives of each iteration."""

    _in_join: _C.Joinable | None = None

    @abstractmethod
    def __init__(self) -> None:
        super().__init__()

    @abstractmethod
    def join_hook(self, **kwargs: Any) -> JoinHook:
        """The hook for one Join; kwargs are what that Join was given."""

    @property
    @abstractmethod
    def join_device(self) -> torch.device:
        """The device of the tensors that Join's own collectives use."""

    @property
    @abstractmethod
    def join_process_group(self) -> ProcessGroup:
        """The group of its collectives: the same for all joinables of one Join."""

    def _enter_join(self, kwargs: dict[str, Any]) -> _C.Joinable:
        return _C.PythonJoinable(self.join_hook(**kwargs), self.join_device, self.join_process_group)


class _StepHook(JoinHook):
    def __init__(self, step: Callable[[], object]) -> None:
        self._step = step

    def main_hook(self) -> None:
        self._step()


class JoinableStep(Joinable):
    """Makes a rank that has left do what the others do after each backward pass: clip, step an optimizer, step a scheduler.

        with Join([model, JoinableStep(model, optimizer.step)]):
            for x, target in loader:
                optimizer.zero_grad()
                loss_of(model(x), target).backward()
                optimizer.step()

    ddp: the DistributedDataParallel, which stands before this object in the list; it gives a rank that has left the averages
        in .grad.
    step: reads gradients, and changes what is the same on all ranks, without communication. One call follows each forward
        pass within the Join.

    Without it such a rank does not step. At the end it gets the parameters of the last joiner, but momentum, averages of squares and
    counts of steps stay behind, so the ranks' later steps differ. PyTorch's Join is like that. A ZeroRedundancyOptimizer needs
    none: it is a Joinable itself.
    """

    def __init__(self, ddp: Joinable, step: Callable[[], object]) -> None:
        super().__init__()
        if not callable(step):
            raise InvalidArgument(f"JoinableStep: a {type(step).__name__} is no function; give what follows a backward pass.")
        self._ddp = ddp
        self._step = step

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """Calls the step."""
        return _StepHook(self._step)

    @property
    def join_device(self) -> torch.device:
        return self._ddp.join_device

    @property
    def join_process_group(self) -> ProcessGroup:
        return self._ddp.join_process_group


class Join:
    """While it is entered, a rank that leaves goes on for its joinables until all ranks have left.

        with Join([model, optimizer]):           # a DistributedDataParallel, a ZeroRedundancyOptimizer
            for x, target in loader:             # a different number of batches on each rank
                optimizer.zero_grad()
                loss_of(model(x), target).backward()
                optimizer.step()

    joinables: in the order of their collectives within an iteration; all of one process group.
    enable False: does nothing, for inputs known to be even.
    throw_on_early_termination: every rank raises EarlyTermination as soon as one has left.
    kwargs: for the joinables; DistributedDataParallel has divide_by_initial_world_size (True): False divides sums by
        the ranks that still have inputs.

    Collective in the group when it is entered. A rank that leaves by an exception tells the others: PeerError.
    """

    def __init__(
        self,
        joinables: Sequence[Joinable],
        enable: bool = True,
        throw_on_early_termination: bool = False,
        **kwargs: Any,
    ) -> None:
        if not joinables or not all(isinstance(joinable, Joinable) for joinable in joinables):
            raise InvalidArgument("Join: a list of Joinables was expected, with at least one.")
        self._joinables = list(joinables)
        self._enable = enable
        self._throws = throw_on_early_termination
        self._kwargs = kwargs
        self._context: _C.JoinContext | None = None

    def __enter__(self) -> Join:
        entered = [joinable._enter_join(self._kwargs) for joinable in self._joinables]
        divide = bool(self._kwargs.get("divide_by_initial_world_size", True))
        self._context = _C.JoinContext(entered, divide, self._enable, self._throws)
        for joinable, native in zip(self._joinables, entered):
            joinable._in_join = native
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        context, self._context = self._context, None
        if context is None:
            return
        try:
            if error is not None:
                context.fail(f"{type(error).__name__}: {error}")
            else:
                context.finish()
        finally:
            for joinable in self._joinables:
                joinable._in_join = None

    @staticmethod
    def notify_join_context(joinable: Joinable) -> None:
        """Says that this rank takes part in an iteration with data. Collective for the first joinable of a Join.

        Raises EarlyTermination where the Join was asked for it. Does nothing outside a Join.
        """
        if joinable._in_join is not None:
            _C.notify_join(joinable._in_join)
