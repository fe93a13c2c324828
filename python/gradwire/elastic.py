# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Training that goes on when ranks die, leave and come.

    elastic = gradwire.elastic.Elastic()                        # under gradwire-run --elastic MIN:MAX
    model = DistributedDataParallel(model, process_group=elastic.group)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    elastic.add(model, optimizer)

    def step(at):
        x, target = samples(at.step, at.rank, at.size)          # depends on these three numbers alone
        optimizer.zero_grad()
        loss_of(model(x), target).backward()
        optimizer.step()                                        # the last thing that a step does

    elastic.run(1000, step)

docs/elastic.md has the promises and their limits.
"""
from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, Protocol, cast

from torch.amp import GradScaler
from torch.nn import Module

from gradwire import _C
from gradwire._bytes import join_value, split_value
from gradwire._C import DEFAULT_TIMEOUT, ElasticStep, ProcessGroup, SlowMember, SlowRule, Store
from gradwire._errors import InvalidArgument
from gradwire.distributed.algorithms.model_averaging.utils import listed
from gradwire.distributed.optim import DilocoAverager, PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from gradwire.nn.parallel import DistributedDataParallel

__all__ = ["Elastic", "ElasticStep", "SlowMember", "SlowRule", "Stateful"]


class Stateful(Protocol):
    """What an optimizer and a learning rate scheduler are."""

    def state_dict(self) -> Any:
        """Returns the state: tensors, numbers, strings, lists and dicts of them."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Takes over what state_dict() of an equal object returned."""


class Elastic:
    """One member of an elastic job. run() is called once, after everything was added, by the thread that made the object.

    store: where members and coordinator meet; its keys are the job's alone. None: the store that gradwire-run --elastic names.
    backend: of each epoch's group, as in init_process_group(). Empty: shm while one launcher started all members, else hybrid.
    seed: given, torch's generator of random numbers is seeded before each step with a number that depends on the seed, the step
        and the rank alone, so a step that is done again draws the same numbers.
    leave_on_sigterm: SIGTERM makes this member leave in good order. While run() runs, Python's own handler is not called.
    hand_over_patience: how long a member that leaves waits for another epoch, when it could not hand over what its hooks owe, or,
        where all members leave, the job's state. Once a rank has failed, gradwire-run kills what is there a second
        after SIGTERM (--grace).
    program: text that all members must have in common besides the model.
    copy_before_step: each step begins with a copy of the parameters, the optimizers and the other states, and a step that breaks
        brings them back. So a step may change them at any point, not only in its last act: for example in several steps of an
        optimizer, as in a Join over many batches. Costs the memory of the state, and the copy in each step. Not for workers far
        apart (DilocoAverager).
    shard_copies: each member also holds a copy of the part of a ZeroRedundancyOptimizer of the member before it, so that the
        part of a member that dies is not lost. The same on all members.
    shard_checkpoint: a file of such an optimizer, torch.save(optimizer.state_dict(), path) after consolidate_state_dict(), from
        which parts come that no member holds any more. Empty or not there: such parts begin anew. A log line says which.
    slow: when a member is slow, and whether it is dropped then: it leaves in good order, and its run() returns "dropped". The same
        on all members; gradwire-run --drop-slow takes its place. None: no member is slow.
    on_slow: called on every member, between two steps, with the SlowMember when a member is slow. The coordinator says it too.
    follow: a newcomer follows the members while they train, and they stop for it only when it is as far as they are: it gets the
        state in the background, and then does the steps that they have done since, with the results of their collectives. So the
        step function is called on it with ElasticStep.follows, also some times before it has the state. False, and in jobs with
        members that train separately, with a ZeroRedundancyOptimizer, with one member only, or with calls in a step that the newcomer
        cannot repeat: the members wait while the state is on its way. The same on all members.
    timeout: how long a member waits for the next epoch, for the others there, for a collective, and for the job's store over TCP when
        its server is gone.
    """

    def __init__(
        self,
        store: Store | None = None,
        *,
        backend: str = "",
        seed: int | None = None,
        leave_on_sigterm: bool = True,
        hand_over_patience: timedelta = timedelta(milliseconds=500),  # noqa: B008 - it cannot be changed
        program: str = "",
        copy_before_step: bool = False,
        shard_copies: bool = True,
        shard_checkpoint: str = "",
        slow: SlowRule | None = SlowRule(),  # noqa: B008 - it cannot be changed
        on_slow: Callable[[SlowMember], object] | None = None,
        follow: bool = False,
        timeout: timedelta = DEFAULT_TIMEOUT,
    ) -> None:
        self._optimizers: list[object] = []  # kept while C++ uses their parts
        self._scalers: list[GradScaler] = []
        self._elastic = _C.Elastic(store, backend, seed, leave_on_sigterm, hand_over_patience, program, copy_before_step,
                                   shard_copies, shard_checkpoint, slow, on_slow, follow, timeout)

    @property
    def group(self) -> ProcessGroup:
        """The group of the present epoch; before run() a group of this rank alone. Make DistributedDataParallel over it."""
        return self._elastic.group

    @property
    def counted(self) -> int:
        """The number of steps that the job has counted, as far as this member knows."""
        return self._elastic.counted()

    def add(self, *things: DistributedDataParallel | Stateful) -> Elastic:
        """Adds to the state of the job: what a step reads and changes, besides its gradients.

        A DistributedDataParallel over `group`, which brings its module and its hook along; a ZeroRedundancyOptimizer over
        `group`, whose parts are dealt anew when the members change; a PostLocalSGDOptimizer with a DilocoAverager over `group`,
        for members that train separately: it takes the place of the DistributedDataParallel, and brings its parameters along, but
        no buffers; a torch.amp.GradScaler, which a step that is done again finds as at its beginning; or anything with state_dict() and load_state_dict(). All members add equal things in the same order, before run().
        """
        for thing in things:
            if isinstance(thing, DistributedDataParallel):
                thing._settled = True
                self._elastic.add_core(thing._core)
            elif isinstance(thing, Module):
                raise InvalidArgument(
                    f"Elastic.add(): a {type(thing).__name__} is a module; add the DistributedDataParallel around it, or where it is "
                    "not trained, such as an average of parameters, give its state_dict() to add_state()")
            elif isinstance(thing, ZeroRedundancyOptimizer):
                self._optimizers.append(thing)
                self._elastic.add_shards(_C.ShardedState(thing.process_group, thing._shards))
            elif isinstance(thing, PostLocalSGDOptimizer) and isinstance(thing.averager, DilocoAverager):
                self._optimizers.append(thing)
                self._elastic.add_optimizer(
                    _C.optim.SeparateOptimizer(thing.averager._native, listed(thing.param_groups), thing))
            elif hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"):
                if isinstance(thing, GradScaler) and thing.is_enabled():
                    self._scalers.append(thing)
                stateful = cast(Stateful, thing)
                self._elastic.add_tensors(
                    type(thing).__name__,
                    lambda stateful=stateful: split_value(stateful.state_dict()),  # type: ignore[misc]
                    lambda state, tensors, stateful=stateful: stateful.load_state_dict(  # type: ignore[misc]
                        join_value(state, tensors)),
                )
            else:
                raise InvalidArgument(
                    f"Elastic.add(): a {type(thing).__name__} has no state_dict() and load_state_dict(); see add_state()")
        return self

    def add_state(self, name: str, save: Callable[[], bytes], load: Callable[[bytes], None]) -> Elastic:
        """Adds a part of the state by two functions: load() takes over bytes that save() returned on another member.

        Large tensors are better in an object with state_dict() and load_state_dict(), given to add(): they are not made bytes.
        """

        def saved() -> bytes:
            state: object = save()
            if not isinstance(state, (bytes, bytearray, str)):
                raise InvalidArgument(f"Elastic: save() of the state '{name}' returned a {type(state).__name__}; it must return bytes.")
            return state.encode() if isinstance(state, str) else bytes(state)

        self._elastic.add_state(name, saved, load)
        return self

    def run(self, steps: int, step: Callable[[ElasticStep], object]) -> Literal["finished", "left", "dropped", "too_late"]:
        """Calls step(at) for each step from 0 to steps - 1 that this member takes part in.

        Returns "finished" when all steps were counted; "left" when this member left, on leave() or SIGTERM; "dropped" when
        this member was slow and left; "too_late" when the job finished before this member took part. A member that joins later begins with the step at which the job is then.

        A step counts when step() returns. When it raises PeerError, TimeoutError or AbortedError, the members that are left meet
        in a new epoch; there, members that have not counted the step take the state of members that have, and when no member has,
        all do the step again. For that, step() changes the state in its last act only, after all communication but that
        of a ZeroRedundancyOptimizer, which can take its step back. Anything else that
        step() raises is raised here, and the others go on without this member.

        Members that train separately call the optimizer's step() once, as the last thing in step(). Steps between two exchanges are
        each member's own, so members may be at other steps. A step whose exchange failed has ended: the next epoch does the
        exchange, and step() is not called for that step again.

        Raises MismatchError when the job runs another program, model or version of gradwire; PeerError when no member that holds
        the state is left, and when the job went on without this member; TimeoutError when there is no coordinator, or are too few
        members, for `timeout`.
        """

        def begin(at: ElasticStep) -> object:
            # What was unscaled in a step that did not count is unscaled again.
            for scaler in self._scalers:
                scaler._per_optimizer_states.clear()
            return step(at)

        called = begin if self._scalers else step
        return cast("Literal['finished', 'left', 'dropped', 'too_late']", self._elastic.run(steps, called))

    def leave(self) -> None:
        """Makes this member leave in good order. Any thread may call it, and step() too."""
        self._elastic.leave()
