# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Parallel modules."""
from gradwire._C import MixedPrecision
from gradwire.nn.parallel.distributed import DistributedDataParallel

__all__ = ["DistributedDataParallel", "MixedPrecision"]
