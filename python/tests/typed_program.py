# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""A user's program, for mypy --strict: it is never run. What it imports must be exported, and typed."""
from __future__ import annotations

from datetime import timedelta

import torch

import gradwire
import gradwire.distributed as dist
from gradwire.distributed import DistError, FileStore, ReduceOp, init_process_group
from gradwire.distributed.algorithms import Join
from gradwire.distributed.algorithms.ddp_comm_hooks import DDPCommHookType, default_hooks, register_ddp_comm_hook
from gradwire.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
from gradwire.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager
from gradwire.distributed.distributed_c10d import _get_default_group, all_gather_object
from gradwire.distributed.nn.functional import all_gather
from gradwire.distributed.optim import DilocoAverager, GossipAverager, PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from gradwire.nn.parallel import DistributedDataParallel


class Group(dist.ProcessGroup):
    def allreduce(self, tensors: list[torch.Tensor], opts: dist.AllreduceOptions) -> dist.Work:  # type: ignore[override]
        return dist._create_work_from_future(torch.futures.Future())


def hook(state: dict[str, int], bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    work = dist.all_reduce(bucket.buffer(), ReduceOp.SUM, bucket.group, async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0] / bucket.divisor)


def tensor_hook(state: None, bucket: dist.GradBucket) -> torch.Tensor:
    return bucket.buffer()


def make_group(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Group:
    return Group(rank, size)


def main() -> None:
    dist.Backend.register_backend("own", make_group, devices=["cpu"])
    init_process_group("shm", store=FileStore("/tmp/meet", 2), rank=0, world_size=2, timeout=timedelta(seconds=9))
    model = DistributedDataParallel(torch.nn.Linear(2, 2), gradient_as_bucket_view=True)
    model.register_comm_hook({"a": 1}, hook)
    model.register_comm_hook(None, default_hooks.fp16_compress_wrapper(tensor_hook))
    model.replace_comm_hook(None, tensor_hook)
    model.register_comm_hook(*gradwire.hooks.power_sgd(rank=4))
    register_ddp_comm_hook(DDPCommHookType.FP16_COMPRESS, model)
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, overlap_with_ddp=True, lr=1e-3)
    model.register_comm_hook(None, hook_with_zero_step(default_hooks.allreduce_hook, model, zero))
    plain = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), 0.1), HierarchicalModelAverager({2: 2}))
    diloco = DilocoAverager(model.parameters(), 50, overlap=5, outer=lambda tensors: torch.optim.SGD(tensors, 0.7))
    far_apart = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), 0.1), diloco)
    gradwire.elastic.Elastic().add(far_apart)
    print(diloco.step, diloco.outer_parameters()[0].shape, GossipAverager(model.parameters(), 50).slow_parameters())
    try:
        with Join([model, zero]):
            loss: torch.Tensor = model(torch.ones(1, 2)).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            plain.step()
    except (DistError, dist.TimeoutError) as error:
        print(error)
    objects: list[object] = [None] * dist.get_world_size()
    all_gather_object(objects, {"rank": dist.get_rank(_get_default_group())})
    parts = all_gather(torch.ones(1))
    print(parts[0].shape, gradwire.to_c10d(_get_default_group()))
    print(gradwire.__version__)
    dist.set_debug_level(dist.DebugLevel.INFO)
    dist.destroy_process_group()
