# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""gradwire as a backend of torch.distributed, and groups of either as groups of the other."""
from __future__ import annotations

import os
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore

from gradwire import _C
from gradwire._C import ProcessGroup, Store
from gradwire._attempt import agree_on_attempt

__all__ = ["from_c10d", "to_c10d"]


def from_c10d(group: Any, store: Store | None = None) -> ProcessGroup:
    """A torch.distributed group (or backend) as a gradwire group; what it promises is what its engine does.

    store: where duplicates and splits of it meet; its keys are this group's alone. None: a part of the group's own,
    where it has one. Ranks wrap the groups of one store in the same order.
    """
    return _C.from_c10d(group, store)


def to_c10d(group: ProcessGroup) -> Any:
    """A gradwire group as a torch.distributed Backend; the same errors, deadlines and order."""
    return _C.to_c10d(group)


def create(options: Any, _: Any) -> Any:
    """A group of torch.distributed over gradwire, for gradwire_autoload; `options` says who meets where.

    Ranks meet at a place of their own in the store. PyTorch gives several groups one name (new_subgroups() in a
    subgroup), and one store several lives: of an agent that starts the ranks anew, of a group that is made again.
    """
    if os.environ.get("GRADWIRE_RECORD"):
        from gradwire import _torch_steps

        _torch_steps.record_steps()
    ranks = ",".join(str(rank) for rank in options.global_ranks_in_group)
    members = ranks or "all"
    asking = PrefixStore(f"gradwire/attempt/{members}", options.store)
    attempt = agree_on_attempt(asking, options.group_rank, options.group_size, options.timeout)
    # The store counts, not this process: a rank may have made groups in other stores before, which the others have not.
    life = options.store.add(f"gradwire/{attempt}/lives/{members}/{options.group_rank}", 1)
    store = PrefixStore(f"gradwire/{attempt}/{members}/{life}", options.store)
    backend = _C.make_c10d_backend(store, options.group_rank, options.group_size, options.timeout)
    # PyTorch names the group, but not where it wraps the backend (TORCH_DISTRIBUTED_DEBUG=DETAIL).
    group = _C.group_under(backend)
    assert group is not None
    group.setGroupName(options.group_id)
    backend.options.group_name = options.group_id
    backend.options.global_ranks_in_group = options.global_ranks_in_group
    return backend
