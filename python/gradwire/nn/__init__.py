# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Modules."""
from gradwire.nn import parallel
from gradwire.nn.sync_batch_norm import SyncBatchNorm

__all__ = ["SyncBatchNorm", "parallel"]
