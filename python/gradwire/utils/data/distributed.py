# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's DistributedSampler over gradwire's groups."""
from __future__ import annotations

from typing import TypeVar

import torch.utils.data
from torch.utils.data import Dataset

from gradwire.distributed._groups import get_rank, get_world_size

__all__ = ["DistributedSampler"]

T = TypeVar("T", covariant=True)


class DistributedSampler(torch.utils.data.DistributedSampler[T]):
    """torch.utils.data.DistributedSampler, which asks gradwire's default group where num_replicas or rank is None.

    PyTorch's own class asks torch.distributed's default group, which a program of gradwire's has not.
    """

    def __init__(
        self,
        dataset: Dataset[T],
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        replicas = get_world_size() if num_replicas is None else num_replicas
        super().__init__(dataset, replicas, get_rank() if rank is None else rank, shuffle, seed, drop_last)
