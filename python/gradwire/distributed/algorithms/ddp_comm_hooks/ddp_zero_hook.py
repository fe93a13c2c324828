# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The steps of a ZeroRedundancyOptimizer inside DistributedDataParallel's backward pass.

    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam, overlap_with_ddp=True, lr=1e-3)
    ddp.register_comm_hook(None, hook_with_zero_step_interleaved(allreduce_hook, ddp, optimizer))

Buckets are DDP's, which are not known before its second iteration, so the first two iterations (three with
static_graph) make no update, as in PyTorch: their gradients are averaged, and that is all. .grad holds the averages at
the end of backward. What wants all gradients before the step (clipping by global norm) comes too late here.
"""
from __future__ import annotations

from typing import Any

import torch

from gradwire import _C
from gradwire._C import GradBucket, ProcessGroup
from gradwire._errors import InvalidArgument, UnsupportedError
from gradwire.distributed.algorithms.ddp_comm_hooks._native import GivenHook, Hook, NativeHook, native_hook
from gradwire.distributed.optim._pieces import Piece
from gradwire.distributed.optim.zero_redundancy_optimizer import ZeroRedundancyOptimizer
from gradwire.nn.parallel.distributed import DistributedDataParallel

__all__ = ["hook_with_zero_step", "hook_with_zero_step_interleaved"]


class _Steps:
    """Called with each averaged bucket, one at a time, in bucket order. Returns whether the bucket is stepped."""

    def __init__(
        self, zero: ZeroRedundancyOptimizer, first_update: int, shard_buckets: bool, interleaved: bool
    ) -> None:
        self._zero = zero
        self._first_update = first_update
        self._shard_buckets = shard_buckets
        self._interleaved = interleaved
        self._learned_in = -1
        # By the bucket's index; buckets of sparse gradients come to no hook.
        self._buckets: dict[int, list[torch.Tensor]] = {}
        self._pieces: dict[int, list[Piece]] = {}
        self._held: list[GradBucket] = []

    def __call__(self, bucket: GradBucket) -> bool:
        if self._learns_from(bucket):
            return False
        self._held.append(bucket)
        if self._interleaved or bucket.is_last():
            held, self._held = self._held, []
            for one in held:
                self._step(one, bucket.group)
        return True

    def _learns_from(self, bucket: GradBucket) -> bool:
        if bucket.iteration + 1 < self._first_update:
            return True
        if self._learned_in < 0:
            self._learned_in = bucket.iteration
        if bucket.iteration == self._learned_in:
            self._buckets[bucket.index()] = bucket.parameters()
            return True
        if not self._pieces:
            indices = sorted(self._buckets)
            placed = self._zero._place_in_buckets([self._buckets[index] for index in indices], self._shard_buckets)
            self._pieces = dict(zip(indices, placed))
        return False

    def _step(self, bucket: GradBucket, group: ProcessGroup) -> None:
        index, parameters = bucket.index(), bucket.parameters()
        known = self._buckets.get(index, [])
        if len(known) != len(parameters) or any(a is not b for a, b in zip(known, parameters)):
            raise InvalidArgument(
                f"ZeroRedundancyOptimizer: bucket {index} has other parameters than it had in iteration "
                f"{self._learned_in} on rank {self._zero.rank}; make one optimizer for each DistributedDataParallel."
            )
        self._zero._step_bucket(self._pieces[index], bucket.gradients(), group)


def _with_zero(
    hook: GivenHook, ddp: DistributedDataParallel, zero: ZeroRedundancyOptimizer, shard_buckets: bool, interleaved: bool
) -> Hook:
    if not zero._overlap_with_ddp:
        raise InvalidArgument("This hook needs a ZeroRedundancyOptimizer that was made with overlap_with_ddp=True.")
    if zero.process_group is not ddp.process_group:
        raise InvalidArgument(
            f"The optimizer's group is {zero.process_group.group_name!r} and DistributedDataParallel's is "
            f"{ddp.process_group.group_name!r}; give both the same one."
        )
    if ddp.mixed_precision is not None:
        raise UnsupportedError(
            "This DistributedDataParallel has mixed_precision, with which parameters cannot step in the backward pass."
        )
    if zero._has_hook:
        raise InvalidArgument("This ZeroRedundancyOptimizer has a hook already; one is enough.")
    zero._has_hook = True
    steps = _Steps(zero, 3 if ddp.static_graph else 2, shard_buckets, interleaved)

    def make(state: Any) -> _C.CommHook:
        return _C.optim.make_hook_then_bucket("zero", native_hook(state, hook), steps)

    return NativeHook("zero_step", make, """Runs the hook that it was made from, then the optimizer's steps.""")


def hook_with_zero_step(
    hook: GivenHook, ddp: DistributedDataParallel, zero: ZeroRedundancyOptimizer, shard_buckets: bool = False
) -> Hook:
    """A hook for `ddp` that runs `hook`, and at the last bucket the steps of `zero`.

    zero: made with overlap_with_ddp from ddp's parameters, over the same group; has one hook only.
    shard_buckets: parameters have the owners that they have without overlap, so that ranks remember 1/N also where
        buckets are few. Otherwise bucket k belongs to rank k mod N.

    Raises InvalidArgument, UnsupportedError (mixed precision); InvalidArgument in the first backward pass with updates
    when `ddp` and `zero` do not have the same parameters. The same arguments on all ranks.
    """
    return _with_zero(hook, ddp, zero, shard_buckets, interleaved=False)


def hook_with_zero_step_interleaved(
    hook: GivenHook, ddp: DistributedDataParallel, zero: ZeroRedundancyOptimizer, shard_buckets: bool = False
) -> Hook:
    """A hook for `ddp` that runs `hook`, then steps the bucket's parameters and sends them, while backward goes on.

    Arguments and errors are those of hook_with_zero_step(), which steps all parameters at the last bucket.
    """
    return _with_zero(hook, ddp, zero, shard_buckets, interleaved=True)
