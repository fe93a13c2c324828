# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Averages in pairs: NoLoCo (Kolehmainen et al., 2025, arXiv:2506.10911)."""
from __future__ import annotations

from typing import Any, Iterable

from torch import Tensor

from gradwire import _C
from gradwire._C import ProcessGroup
from gradwire.distributed._groups import _resolve
from gradwire.distributed.algorithms.model_averaging.utils import listed
from gradwire.distributed.optim._native_averager import NativeAverager

__all__ = ["GossipAverager"]


class GossipAverager(NativeAverager):
    """Workers far apart train by themselves for many steps, and then average with one other worker each.

        gossip = GossipAverager(model.parameters(), inner_steps=100)
        optimizer = PostLocalSGDOptimizer(torch.optim.AdamW(model.parameters(), 4e-4), gossip)

    At the end of every inner_steps-th step the ranks are divided into pairs at random. No exchange but the first waits for more than two ranks.
    Each rank keeps slow parameters and a momentum of its own; the ranks stay near each other, and are never equal.

    Collective: compares parameters and options, and gives all ranks the parameters of rank 0. All arguments are the same on all
    ranks; MismatchError on all ranks where they differ. InvalidArgument for options out of range.

    params: those of the optimizer, in the same order; parameters, or groups of them.
    inner_steps: the number of steps between two exchanges. At least 1.
    momentum, lr: of the outer step; in [0, 1), and above 0.
    gamma: how far a rank goes to the mean of its pair: 0 not at all, 1 all the way. In [0, 2).
    seed: of the pairs.
    process_group: None: the default group. It needs send() and recv(), and a fixed set of ranks: UnsupportedError for Elastic.group.
    """

    _native: _C.optim.GossipAverager

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        inner_steps: int = 100,
        *,
        momentum: float = 0.5,
        lr: float = 0.7,
        gamma: float = 1.0,
        seed: int = 0,
        process_group: ProcessGroup | None = None,
    ) -> None:
        group = _resolve(process_group)
        native = _C.optim.GossipAverager(listed(params), group, inner_steps, momentum, lr, gamma, seed % 2**64)
        super().__init__(native, group)

    def slow_parameters(self) -> list[Tensor]:
        """This rank's slow parameters, in the order of params. Not a copy. To publish one model, average them over the ranks."""
        return self._native.slow_parameters()
