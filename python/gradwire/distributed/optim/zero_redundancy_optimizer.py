# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""An optimizer whose memory is shared out among the ranks (Rajbhandari et al., 2020, arXiv:1910.02054, first stage)."""
from __future__ import annotations

from typing import Any, Callable, Iterable, NoReturn

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils import _pytree

from gradwire import _C
from gradwire._C import ProcessGroup
from gradwire._errors import EarlyTermination, InvalidArgument, MismatchError, UnsupportedError
from gradwire.distributed._groups import _resolve
from gradwire.distributed._objects import all_gather_object, gather_object
from gradwire.distributed.algorithms.join import Join, Joinable, JoinHook
from gradwire.distributed.optim._elastic_shards import ElasticShards
from gradwire.distributed.optim._pieces import Piece, copy_options, lent_gradients, options_of

__all__ = ["ZeroRedundancyOptimizer"]

_NAME = "ZeroRedundancyOptimizer"


class _Shadow(JoinHook):
    def __init__(self, optimizer: ZeroRedundancyOptimizer) -> None:
        self.optimizer = optimizer

    def main_hook(self) -> None:
        self.optimizer._step_and_share(None, joined=True)

    def is_unfinished(self, begun: bool) -> bool:
        return not begun

    def abandon_hook(self, begun: bool, what: str) -> bool:
        return self.optimizer._abandon(f"left a Join before the step of {_NAME}: {what}")


class ZeroRedundancyOptimizer(Optimizer, Joinable):
    """Each rank steps 1/N of the parameters, remembers what its optimizer needs for those, and sends the results.

        model = DistributedDataParallel(model)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)

    On all ranks the same bits as `optimizer_class(params, **defaults)` by itself.

    params: parameters or groups of them, dense leaves, the same on all ranks; they may be of several dtypes. All travel
        in each step, also those that need no gradient: do not pass those.
    optimizer_class: makes the local optimizer out of groups and `defaults`. Any that treats each parameter by itself:
        all of torch.optim's but LBFGS.
    process_group: None: the default group.
    parameters_as_bucket_view: parameters move into flat buffers, which travel as they are; otherwise they are copied
        into messages of at most 25 MiB.
    overlap_with_ddp: the steps run in DDP's backward pass, see
        gradwire.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook; step() does nothing then. One parameter group,
        and no GradScaler.

    Which rank steps a parameter: group by group the largest first, each to the rank with the fewest elements so far, as
    in PyTorch. Construction is collective. Raises InvalidArgument, MismatchError on all ranks that differ. An exception
    in a step or a closure reaches the other ranks as a PeerError that quotes it. Options (param_groups) may change
    between steps, so schedulers of learning rates work. Destroy it before its group.

    In an elastic job (gradwire.elastic.Elastic.add()) the parameters are dealt anew when the ranks change. A rank then
    steps the parameters of the rank before it too, as a copy of that rank's state, and keeps what a step changes.
    """

    _constructed = False

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: Callable[..., Optimizer],
        process_group: ProcessGroup | None = None,
        parameters_as_bucket_view: bool = False,
        overlap_with_ddp: bool = False,
        **defaults: Any,
    ) -> None:
        if optimizer_class is torch.optim.LBFGS:
            raise InvalidArgument(f"{_NAME} cannot share out LBFGS, which looks at all parameters at once.")
        Optimizer.__init__(self, params, defaults)
        Joinable.__init__(self)
        self.process_group = _resolve(process_group)
        self.rank = self.process_group.rank()
        self.world_size = self.process_group.size()
        self.parameters_as_bucket_view = parameters_as_bucket_view
        self._overlap_with_ddp = overlap_with_ddp
        # A GradScaler then sets `found_inf` before it calls step(), which can tell by this that there is one.
        self._step_supports_amp_scaling = overlap_with_ddp
        self._optimizer_class = optimizer_class
        self._defaults = defaults
        self._owners: dict[Tensor, int] = {}
        self._pieces: list[Piece] = []
        self._consolidated = False
        self._partition = _C.optim.GreedyPartition(self.world_size)
        # In an elastic job.
        self._shards = ElasticShards(self)
        self._copies = False
        self._copy: Optimizer | None = None  # over the parameters of another rank
        # Overlapped: loaded before the pieces are known.
        self._loaded: dict[int, Any] | None = None
        self._has_hook = False
        self._placed = not overlap_with_ddp

        self._require_usable()
        # Bad options are refused before any call: the local optimizer looks at them.
        local = self._make([{**options_of(group), "params": []} for group in self.param_groups])
        copy_options(local.param_groups, self.param_groups)
        # Some schedulers look here for what the optimizer can do (OneCycleLR: "betas").
        self.defaults = {**local.defaults, **defaults}
        self._require_agreement(self.process_group)
        duplicate = self.process_group.dup()
        self._channel = self.process_group if duplicate is None else duplicate
        if not overlap_with_ddp:
            self._pieces = [Piece(owner, self.parameters_as_bucket_view) for owner in range(self.world_size)]
        self._constructed = True
        self._place(0)

    # Construction

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _require_usable(self) -> None:
        parameters = self._parameters()
        _C.optim.require_parameters(_NAME, parameters)
        if self._overlap_with_ddp and len(self.param_groups) > 1:
            raise InvalidArgument(
                f"{_NAME}: overlap_with_ddp takes one parameter group; got {len(self.param_groups)}. Leave it False to "
                "use several."
            )
        for parameter in parameters:
            if not self.process_group.supports(parameter.device.type):
                raise InvalidArgument(
                    f"{_NAME}: a parameter is on {parameter.device}, which the group {self.process_group.name()!r} does "
                    "not serve."
                )

    def _require_agreement(self, group: ProcessGroup) -> None:
        _C.optim.require_same_parameters(
            group, self._parameters(), len(self.param_groups), self.parameters_as_bucket_view, self._overlap_with_ddp
        )

    def _make(self, groups: list[dict[str, Any]]) -> Optimizer:
        return self._optimizer_class(groups, **self._defaults)

    def _place(self, first: int) -> None:
        """Owners and, unless overlapped, pieces for the groups from number `first` on."""
        mine = []
        copied = []
        for group in self.param_groups[first:]:
            parameters = group["params"]
            owners = self._partition.add_group([parameter.numel() for parameter in parameters])
            self._owners.update(zip(parameters, owners))
            for piece in self._pieces:
                part = [parameter for parameter, owner in zip(parameters, owners) if owner == piece.owner]
                piece.parameters += part
                piece.shared.add(part)
                if piece.owner == self.rank:
                    mine.append({**options_of(group), "params": part})
                if piece.owner == self._copied_rank():
                    copied.append({**options_of(group), "params": part})
        if self._overlap_with_ddp:
            return
        piece = self._pieces[self.rank]
        piece.optim = self._extended(piece.optim, mine)
        if copied:
            self._copy = self._extended(self._copy, copied)

    def _extended(self, optimizer: Optimizer | None, groups: list[dict[str, Any]]) -> Optimizer:
        if optimizer is None:
            return self._make(groups)
        for added in groups:
            optimizer.add_param_group(added)
        return optimizer

    def _copied_rank(self) -> int:
        """The rank whose parameters this rank steps too; -1: none."""
        return (self.rank - 1) % self.world_size if self._copies and self.world_size > 1 else -1

    def _holders(self) -> list[Optimizer]:
        """The optimizers of this rank: over its own parameters, and over those of which it holds a copy."""
        return [self.optim] + ([] if self._copy is None else [self._copy])

    def _place_anew(self, rank: int, size: int, copies: bool) -> None:
        """Owners and pieces for another rank of another group; what the optimizers remember is forgotten."""
        self._forget_consolidated()
        self.rank = rank
        self.world_size = size
        self._copies = copies
        self._copy = None
        self._owners = {}
        self._partition = _C.optim.GreedyPartition(size)
        self._pieces = [Piece(owner, self.parameters_as_bucket_view) for owner in range(size)]
        self._place(0)

    def _require_dealt(self) -> None:
        rank, size = self.process_group.rank(), self.process_group.size()
        if self._overlap_with_ddp or (rank, size) == (self.rank, self.world_size):
            _C.optim.require_open_group(self.process_group)
            return
        raise InvalidArgument(
            f"{_NAME}: this is rank {rank} of {size}, and the state here is that of rank {self.rank} of "
            f"{self.world_size}. Over the group of an Elastic, call Elastic.add(optimizer) before run(). After this rank "
            "has left an elastic job, the state of the other ranks is not here."
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Collective, with the constructor's errors; parameters of other groups stay with their ranks."""
        if not self._constructed:  # the base's constructor
            super().add_param_group(param_group)
            return
        super().add_param_group(param_group)
        try:
            self._require_usable()
            self._require_agreement(self._channel)
        except BaseException:
            self.param_groups.pop()
            raise
        self._forget_consolidated()
        self._place(len(self.param_groups) - 1)
        # With the defaults that the local optimizer gave it; those of older groups may have changed since its step.
        copy_options(self.optim.param_groups[-1:], self.param_groups[-1:])

    # Steps

    @property
    def optim(self) -> Optimizer:
        """This rank's optimizer, over its parameters in as many groups."""
        if self._overlap_with_ddp:
            raise InvalidArgument(f"{_NAME}: with overlap_with_ddp there is no one local optimizer.")
        local = self._pieces[self.rank].optim
        assert local is not None
        return local

    def owner_of(self, parameter: Tensor) -> int:
        """The rank of the group that steps `parameter`; with overlap_with_ddp known after the first update."""
        if parameter not in self._owners:
            raise InvalidArgument(f"{_NAME}: owner_of() was asked for a tensor that is not among the parameters.")
        self._require_placed()
        return self._owners[parameter]

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Collective: the local optimizer steps this rank's parameters, then all ranks get them.

        closure: runs once on every rank, also where no parameters are. Returns what it returned.
        """
        if self._overlap_with_ddp:
            if closure is not None:
                raise InvalidArgument(
                    f"{_NAME}: with overlap_with_ddp the steps run in the backward pass; step() takes no closure."
                )
            if hasattr(self, "found_inf"):
                raise UnsupportedError(
                    f"{_NAME} on rank {self.rank}: with overlap_with_ddp the parameters have stepped in the backward "
                    "pass, with the gradients of the scaled loss. Use a GradScaler without overlap_with_ddp."
                )
            return None
        return self._step_and_share(closure, joined=False, **kwargs)

    def _step_and_share(self, closure: Callable[[], Any] | None, joined: bool, **kwargs: Any) -> Any:
        self._require_dealt()
        self._forget_consolidated()
        # After the closure, in which DDP may go first, and before the first change.
        told = joined

        def tell_join() -> None:
            nonlocal told
            if not told:
                told = True
                Join.notify_join_context(self)

        def require_averages() -> None:
            _C.optim.require_passes_ended(self._parameters(), f"the step of {_NAME}")

        def told_closure() -> Any:
            assert closure is not None
            result = closure()
            require_averages()
            tell_join()
            return result

        try:
            copy_options(self.param_groups, self.optim.param_groups)
            self._shards.keep()
            if closure is None:
                require_averages()
                tell_join()
                loss: Any = self.optim.step(**kwargs)
            else:
                loss = self.optim.step(closure=told_closure, **kwargs)
                tell_join()
            copy_options(self.optim.param_groups, self.param_groups)
            if self._copy is not None:
                copy_options(self.param_groups, self._copy.param_groups)
                self._copy.step(**kwargs)
            self._shards.stepped()
        except EarlyTermination:
            raise
        except BaseException as error:
            # The others are on their way to the exchange. The user's own group is not ours to end.
            if self._channel is not self.process_group:
                what = f"{type(error).__name__}: {error}"
                self._channel.abort(f"The step of {_NAME} failed on rank {self.rank}: {what}")
            raise
        for piece in self._pieces:
            self._share(piece, self._channel)
        return loss

    def _abandon(self, what: str) -> bool:
        """Ends the exchange to which the others are on their way, unless the group is the user's own."""
        if self._channel is self.process_group:
            return False
        self._channel.abort(f"rank {self.rank} {what}")
        return True

    def _share(self, piece: Piece, group: ProcessGroup) -> None:
        piece.shared.share(group, piece.owner)

    # Join

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """On a rank without inputs: steps this rank's parameters; DDP, earlier in the Join, gives it the averages."""
        return JoinHook() if self._overlap_with_ddp else _Shadow(self)

    @property
    def join_device(self) -> torch.device:
        return self._parameters()[0].device

    @property
    def join_process_group(self) -> ProcessGroup:
        return self.process_group

    # State

    def _require_placed(self) -> None:
        if not self._placed:
            raise InvalidArgument(f"{_NAME}: with overlap_with_ddp this is known after the first update only.")

    def _forget_consolidated(self) -> None:
        if self._consolidated:
            self.state.clear()
            self._consolidated = False

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Collective: brings what all ranks remember to rank `to` of the group, in the CPU's memory.

        state_dict() works there until the next step. Raises InvalidArgument (no such rank; with overlap_with_ddp before
        the first update), MismatchError on all ranks when they name different ones.
        """
        self._require_dealt()
        if not 0 <= to < self.world_size:
            raise InvalidArgument(f"{_NAME}: there is no rank {to} in a group of {self.world_size}.")
        self._require_placed()
        wanted: list[Any] = [None] * self.world_size
        all_gather_object(wanted, to, self._channel)
        if any(rank != to for rank in wanted):
            raise MismatchError(f"{_NAME}: consolidate_state_dict() was asked for different ranks: {wanted}, by rank.")
        self._forget_consolidated()
        parts: list[Any] | None = [None] * self.world_size if self.rank == to else None
        gather_object(self._local_state(), parts, group=self._channel, group_dst=to)
        if parts is None:
            return
        found = {index: state for part in parts for index, state in part.items()}
        self.state.update((parameter, found[i]) for i, parameter in enumerate(self._parameters()) if i in found)
        self._consolidated = True

    def _local_state(self) -> dict[int, Any]:
        """What this rank remembers, by the parameters' numbers, on the CPU."""
        numbers = {parameter: number for number, parameter in enumerate(self._parameters())}
        return {
            numbers[parameter]: _pytree.tree_map_only(Tensor, Tensor.cpu, dict(piece.optim.state[parameter]))
            for piece in self._pieces if piece.optim is not None
            for parameter in piece.parameters if parameter in piece.optim.state
        }

    def state_dict(self) -> dict[str, Any]:
        """What `optimizer_class` over the same parameters would give, and can load; its tensors are on the CPU.

        Raises InvalidArgument unless consolidate_state_dict() brought the state to this rank since the last step.
        """
        if not self._consolidated:
            raise InvalidArgument(
                f"{_NAME}: the state is not on rank {self.rank}, or is older than the last step; call "
                f"consolidate_state_dict(to={self.rank}) on all ranks before state_dict()."
            )
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over such a state: of this class on any number of ranks, or of the plain optimizer.

        Every rank loads the same one and keeps its part. Raises ValueError when it is of other parameter groups.
        """
        self._forget_consolidated()
        super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})
        saved = [number for group in state_dict["param_groups"] for number in group["params"]]
        state = {number: state_dict["state"][name] for number, name in enumerate(saved) if name in state_dict["state"]}
        if not self._placed:
            self._loaded = state
            return
        for piece in self._pieces:
            if piece.optim is not None:  # this rank owns it
                self._give_state(piece.optim, piece.parameters, state)
        if self._copy is not None:
            copied = [parameter for group in self._copy.param_groups for parameter in group["params"]]
            self._give_state(self._copy, copied, state)
        if not self._overlap_with_ddp:
            copy_options(self.optim.param_groups, self.param_groups)

    def _give_state(self, optim: Optimizer, parameters: list[Tensor], state: dict[int, Any]) -> None:
        """Loads the state of `parameters` into `optim`, which steps them. `state` is by the numbers of this object's."""
        numbers = {parameter: number for number, parameter in enumerate(self._parameters())}
        part = {
            numbers[parameter]: state[numbers[parameter]]
            for parameter in parameters if numbers[parameter] in state
        }
        groups = [
            {**options_of(own), "params": [numbers[parameter] for parameter in local["params"]]}
            for own, local in zip(self.param_groups, optim.param_groups)
        ]
        optim.load_state_dict({"state": part, "param_groups": groups})

    def __getstate__(self) -> NoReturn:
        raise TypeError(f"{_NAME} cannot be pickled or copied: it belongs to a process group; save state_dict().")

    # Overlapped with DDP: what ddp_zero_hook calls, on one thread at a time.

    def _place_in_buckets(self, buckets: list[list[Tensor]], shard_buckets: bool) -> list[list[Piece]]:
        """The pieces of each bucket. Without shard_buckets bucket k belongs to rank k mod N."""
        given = {parameter for bucket in buckets for parameter in bucket}
        # One that was frozen after DistributedDataParallel was made is in a bucket.
        needed = {parameter for parameter in self._parameters() if parameter.requires_grad or parameter in given}
        if needed != given:
            raise InvalidArgument(
                f"{_NAME}: DistributedDataParallel has {len(given)} parameters in its buckets and the optimizer "
                f"{len(needed)} that need a gradient, {len(given & needed)} of them the same, on rank {self.rank}; with "
                "overlap_with_ddp, make it from the parameters of that DistributedDataParallel, all of them."
            )
        placed = []
        for index, bucket in enumerate(buckets):
            pieces: dict[int, Piece] = {}
            for slot, parameter in enumerate(bucket):
                if not shard_buckets:
                    self._owners[parameter] = index % self.world_size
                owner = self._owners[parameter]
                piece = pieces.setdefault(owner, Piece(owner, self.parameters_as_bucket_view))
                piece.parameters.append(parameter)
                piece.slots.append(slot)
            placed.append([pieces[owner] for owner in sorted(pieces)])
        for piece in (piece for pieces in placed for piece in pieces):
            if piece.owner == self.rank:
                piece.optim = self._make([{**options_of(self.param_groups[0]), "params": piece.parameters}])
                if self._loaded is not None:
                    self._give_state(piece.optim, piece.parameters, self._loaded)
            self._pieces.append(piece)
        self._loaded = None
        self._placed = True
        return placed

    def _step_bucket(self, pieces: list[Piece], gradients: list[Tensor], group: ProcessGroup) -> None:
        self._forget_consolidated()
        for piece in pieces:
            # Not before: the backward pass of this bucket's parameters is over, that of others may not be.
            if piece.shared.empty():
                piece.shared.add(piece.parameters)
            if piece.optim is not None:
                copy_options(self.param_groups, piece.optim.param_groups)
                # A parameter that was frozen since has no gradient, and is not stepped.
                lent = [
                    gradients[slot] if parameter.requires_grad else None
                    for parameter, slot in zip(piece.parameters, piece.slots)
                ]
                with lent_gradients(piece.parameters, lent):
                    piece.optim.step()
        for piece in pieces:
            self._share(piece, group)
