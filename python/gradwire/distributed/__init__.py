# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The names of torch.distributed over gradwire's runtime."""
from gradwire._C import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    FileStore,
    GatherOptions,
    GradBucket,
    HashStore,
    PrefixStore,
    ProcessGroup,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
    Store,
    TCPStore,
    Work,
    _create_work_from_future,
    make_process_group,
)
from gradwire._errors import *  # noqa: F403
from gradwire.distributed import distributed_c10d
from gradwire.distributed.distributed_c10d import *  # noqa: F403
from gradwire.distributed._collectives import _all_gather_base, _reduce_scatter_base
from gradwire.distributed._groups import _get_default_group
from gradwire.distributed import algorithms, nn, optim  # noqa: E402  (they import this package's names)

_Work = Work
