# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Optimizers that work across ranks."""
from gradwire.distributed.optim.post_localSGD_optimizer import PostLocalSGDOptimizer
from gradwire.distributed.optim.zero_redundancy_optimizer import ZeroRedundancyOptimizer

__all__ = ["PostLocalSGDOptimizer", "ZeroRedundancyOptimizer"]
