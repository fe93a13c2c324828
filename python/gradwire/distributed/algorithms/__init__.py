# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Algorithms on top of the collectives."""
from gradwire.distributed.algorithms import ddp_comm_hooks, join, model_averaging
from gradwire.distributed.algorithms.join import Join, Joinable, JoinableStep, JoinHook

__all__ = ["Join", "JoinHook", "Joinable", "JoinableStep", "ddp_comm_hooks", "join", "model_averaging"]
