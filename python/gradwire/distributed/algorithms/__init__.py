# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Algorithms on top of the collectives."""
from gradwire.distributed.algorithms import ddp_comm_hooks, model_averaging

__all__ = ["ddp_comm_hooks", "model_averaging"]
