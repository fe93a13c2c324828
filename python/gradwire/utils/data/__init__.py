# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Data for several ranks."""
from gradwire.utils.data.distributed import DistributedSampler

__all__ = ["DistributedSampler"]
