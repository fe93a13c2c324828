# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Whether ranks that trained together have the same model."""
from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from gradwire import distributed as dist


def require_same_parameters(parameters: Iterable[Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Raises unless all ranks of the group have the same bits. Collective."""
    whole = [parameter.full_tensor() if isinstance(parameter, DTensor) else parameter for parameter in parameters]
    mine = torch.cat([parameter.detach().flatten() for parameter in whole]).cpu()
    all_of_them = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(all_of_them, mine, group)
    for rank, theirs in enumerate(all_of_them):
        if not torch.equal(mine, theirs):
            raise AssertionError(f"the parameters of ranks {dist.get_rank(group)} and {rank} differ by {(mine - theirs).abs().max().item()}")
