# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""torchft over gradwire.

    from gradwire.integrations.torchft import ProcessGroupGradwire

    manager = torchft.Manager(pg=ProcessGroupGradwire(timeout=timedelta(seconds=30)), ...)
"""
from __future__ import annotations

from typing import Any

import torch
import torch.distributed as torch_dist
from torchft.process_group import ProcessGroupWrapper

from gradwire import _C

__all__ = ["ProcessGroupGradwire"]


class ProcessGroupGradwire(ProcessGroupWrapper):
    """A group over gradwire, for CPU tensors, which torchft makes again for each quorum.

    timeout: of the rendezvous of a quorum, and of the group's calls. A rank that dies is noticed before.
    """

    def _create_pg(self, store: Any, rank: int, world_size: int) -> torch_dist.ProcessGroup:
        backend = _C.make_c10d_backend(store, rank, world_size, self._timeout)
        group = torch_dist.ProcessGroup(store, rank, world_size)
        group._set_default_backend(torch_dist.ProcessGroup.BackendType.CUSTOM)
        group._register_backend(torch.device("cpu"), torch_dist.ProcessGroup.BackendType.CUSTOM, backend)
        return group

    def getBackendName(self) -> str:
        """The name under which torchft lists the group."""
        return "torchft-gradwire"
