# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Optimizers that work across ranks, and the averagers of workers far apart."""
from gradwire.distributed.optim.diloco_averager import DilocoAverager
from gradwire.distributed.optim.gossip_averager import GossipAverager
from gradwire.distributed.optim.post_localSGD_optimizer import PostLocalSGDOptimizer
from gradwire.distributed.optim.zero_redundancy_optimizer import ZeroRedundancyOptimizer

__all__ = ["DilocoAverager", "GossipAverager", "PostLocalSGDOptimizer", "ZeroRedundancyOptimizer"]
