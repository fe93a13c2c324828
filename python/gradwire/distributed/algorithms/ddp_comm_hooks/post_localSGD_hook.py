# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Post-local SGD: gradients are averaged over all ranks first, later within subgroups only (Lin et al., 2018,
arXiv:1808.07217). Models are then to be averaged now and then, see gradwire.distributed.algorithms.model_averaging."""
from __future__ import annotations

from gradwire import _C
from gradwire._C import ProcessGroup
from gradwire.distributed._groups import new_subgroups
from gradwire.distributed.algorithms.ddp_comm_hooks._native import NativeHook

__all__ = ["PostLocalSGDState", "post_localSGD_hook"]


class PostLocalSGDState:
    """process_group: for all ranks; None: DDP's own. subgroup: the ranks that go on together; None: those of one host,
    out of LOCAL_WORLD_SIZE, which is collective. start_localSGD_iter: the first iteration that is not global.
    post_local_gradient_allreduce False: no communication from then on."""

    def __init__(
        self,
        process_group: ProcessGroup | None,
        subgroup: ProcessGroup | None,
        start_localSGD_iter: int,
        post_local_gradient_allreduce: bool = True,
    ) -> None:
        if subgroup is None and post_local_gradient_allreduce:
            made = new_subgroups(group=process_group)[0]
            subgroup = made if isinstance(made, ProcessGroup) else None
        self.process_group = process_group
        self.subgroup = subgroup
        self.start_localSGD_iter = start_localSGD_iter
        self.post_local_gradient_allreduce = post_local_gradient_allreduce
        self._native = _C.hooks.make_post_local_sgd_hook(
            process_group, subgroup, start_localSGD_iter, post_local_gradient_allreduce
        )


post_localSGD_hook = NativeHook(
    "post_localSGD_hook",
    lambda state: state._native,
    """Averages over all ranks before state.start_localSGD_iter, within the subgroup from then on.""",
)
