# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Hooks for looking into training, not for training."""
from __future__ import annotations

from gradwire import _C
from gradwire.distributed.algorithms.ddp_comm_hooks._native import NativeHook

__all__ = ["noop_hook"]


noop_hook = NativeHook(
    "noop_hook",
    lambda state: _C.hooks.make_noop_hook(),
    """Communicates nothing: each rank keeps its own gradients, undivided, so replicas drift apart.""",
)
