# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Averaging in groups of several sizes, the larger the rarer (Wang et al., 2020, arXiv:2010.12998)."""
from __future__ import annotations

from typing import Mapping

from gradwire._C import ProcessGroup
from gradwire._errors import InvalidArgument, UnsupportedError
from gradwire.distributed._groups import _resolve
from gradwire.distributed.algorithms.model_averaging.averagers import ModelAverager, Parameters, average_at

__all__ = ["HierarchicalModelAverager"]


def _part(world: ProcessGroup, size: int) -> ProcessGroup:
    """This rank's group of `size` ranks; collective."""
    if size == world.size():
        return world
    part = world.split(world.rank() // size, world.rank())
    if part is None:
        raise UnsupportedError("HierarchicalModelAverager: this process group cannot be split.")
    return part


class HierarchicalModelAverager(ModelAverager):
    """`HierarchicalModelAverager({2: 4, 8: 16})` averages among every 4 ranks at even steps, among 16 at every eighth.

    period_group_size_dict: sizes of groups by period, periods rising. A size divides that of process_group, the last
        one is it; a group is as many ranks that follow one another.
    warmup_steps: nothing is averaged before that step. Of the periods that divide the step the largest counts (the
        step itself, not its distance from warmup_steps, as in PyTorch).
    process_group: None: the default group. Collective there: it is split. Must be able to: UnsupportedError.
    """

    def __init__(
        self,
        period_group_size_dict: Mapping[int, int] | None = None,
        warmup_steps: int = 0,
        process_group: ProcessGroup | None = None,
    ) -> None:
        world = _resolve(process_group)
        super().__init__(world)
        levels = dict(period_group_size_dict or {})
        periods, sizes = list(levels), list(levels.values())
        if not levels or periods[0] < 1 or any(a >= b for a, b in zip(periods, periods[1:])):
            raise InvalidArgument(
                f"HierarchicalModelAverager: period_group_size_dict = {levels}; periods must begin at 1 or more, and rise."
            )
        if any(size < 1 or world.size() % size for size in sizes) or sizes[-1] != world.size():
            raise InvalidArgument(
                f"HierarchicalModelAverager: the sizes {sizes} must divide {world.size()}, the number of ranks, and the "
                "last one be it."
            )
        if warmup_steps < 0:
            raise InvalidArgument(f"HierarchicalModelAverager: warmup_steps = {warmup_steps}; it must not be negative.")
        self.warmup_steps = warmup_steps
        self.period_process_group_dict = {period: _part(world, size) for period, size in levels.items()}

    def _find_process_group(self) -> ProcessGroup | None:
        """The group that averages at the present step, None for none."""
        due = [period for period in self.period_process_group_dict if self.step % period == 0]
        return self.period_process_group_dict[max(due)] if due else None

    def average_parameters(self, params: Parameters) -> None:
        """params: all parameters, or an optimizer's groups of them; those without gradient are skipped.

        Raises MismatchError on the ranks that average, as PeriodicModelAverager.
        """
        if self.step >= self.warmup_steps:
            group = self._find_process_group()
            if group is not None:
                average_at(self, params, group)
        self.step += 1
