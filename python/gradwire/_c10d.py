# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""gradwire as a backend of torch.distributed, and groups of either as groups of the other."""
from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as torch_dist

from gradwire import _C
from gradwire._C import ProcessGroup, Store

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


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    return _C.make_c10d_backend(store, rank, size, timeout)


def register() -> None:
    """Makes torch.distributed.init_process_group("gradwire") known to PyTorch; once."""
    if not hasattr(torch_dist.Backend, "GRADWIRE"):
        torch_dist.Backend.register_backend("gradwire", _create, devices=["cpu"])
