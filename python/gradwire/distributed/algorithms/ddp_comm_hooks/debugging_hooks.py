# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Hooks for looking into training, not for training."""
from __future__ import annotations

from typing import Any

import torch
from torch.futures import Future

from gradwire import _C
from gradwire._C import GradBucket
from gradwire.distributed.algorithms.ddp_comm_hooks._native import native

__all__ = ["noop_hook"]


@native(lambda state: _C.hooks.make_noop_hook())
def noop_hook(state: Any, bucket: GradBucket) -> Future[torch.Tensor]:
    """Communicates nothing: each rank keeps its own gradients, undivided, so replicas drift apart."""
    return _C.hooks.noop_hook(None, bucket)
