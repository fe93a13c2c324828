# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Optimizers that work across ranks."""
from gradwire.distributed.optim.post_localSGD_optimizer import PostLocalSGDOptimizer

__all__ = ["PostLocalSGDOptimizer"]
