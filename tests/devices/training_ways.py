# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The ways to train over several ranks that python_check.py compares between devices: each makes of a model what is called in its place,
and the optimizer that steps it."""
from __future__ import annotations

from functools import partial
from typing import Any, Callable, Optional

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

import gradwire
from gradwire import distributed as dist
from gradwire.distributed.algorithms.ddp_comm_hooks import ddp_zero_hook, default_hooks, optimizer_overlap_hooks
from gradwire.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from gradwire.distributed.optim import DilocoAverager, GossipAverager, PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from gradwire.nn import SyncBatchNorm
from gradwire.nn.parallel import DistributedDataParallel, MixedPrecision

# The second is None where the backward pass steps the parameters.
Trained = tuple[nn.Module, Optional[torch.optim.Optimizer]]
Way = Callable[[nn.Module], Trained]
SGD = partial(torch.optim.SGD, lr=0.05)
MOMENTUM = partial(torch.optim.SGD, lr=0.02, momentum=0.9)


def wrapped(wrap: Callable[[nn.Module], nn.Module]) -> Way:
    """A way that steps the parameters of wrap(model)."""
    def way(model: nn.Module) -> Trained:
        module = wrap(model)
        return module, SGD(module.parameters())
    return way


def own_hook(group: dist.ProcessGroup, bucket: Any) -> torch.futures.Future:
    """A hook as users write them in Python: it averages, with an operation on the result."""
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    return work.get_future().then(lambda future: future.value()[0].div_(dist.get_world_size(group)))


def with_hook(spec: str) -> Way:
    def wrap(model: nn.Module) -> nn.Module:
        ddp = DistributedDataParallel(model)
        ddp.register_comm_hook(*gradwire.hooks.make(spec))
        return ddp
    return wrapped(wrap)


@wrapped
def with_own_hook(model: nn.Module) -> nn.Module:
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(dist.group.WORLD, own_hook)
    return ddp


@wrapped
def with_torch_and_our_hook(model: nn.Module) -> nn.Module:
    ddp = nn.parallel.DistributedDataParallel(model)
    ddp.register_comm_hook(*gradwire.hooks.make("int8"))
    return ddp


@wrapped
def with_batch_normalization(model: nn.Module) -> nn.Module:
    layers = nn.Sequential(model[0], nn.BatchNorm1d(2048), *model[1:])
    return DistributedDataParallel(SyncBatchNorm.convert_sync_batchnorm(layers.to(model[0].weight.device)))


def with_zero(model: nn.Module) -> Trained:
    ddp = DistributedDataParallel(model)
    return ddp, ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam, lr=0.001)


def with_zero_in_backward(model: nn.Module) -> Trained:
    ddp = DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.05)
    ddp.register_comm_hook(None, ddp_zero_hook.hook_with_zero_step_interleaved(default_hooks.allreduce_hook, ddp, optimizer))
    return ddp, optimizer


def with_steps_in_the_hook(model: nn.Module) -> Trained:
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(None, optimizer_overlap_hooks.hook_then_optimizer(default_hooks.allreduce_hook, SGD))
    return ddp, None


def with_periodic_averages(model: nn.Module) -> Trained:
    return model, PostLocalSGDOptimizer(SGD(model.parameters()), PeriodicModelAverager(period=2, warmup_steps=0))


def with_diloco(model: nn.Module) -> Trained:
    averager = DilocoAverager(model.parameters(), 4, fragments=2, overlap=1, mixing=0.5, hook="int4:memory=error_feedback")
    return model, PostLocalSGDOptimizer(MOMENTUM(model.parameters()), averager)


def with_gossip(model: nn.Module) -> Trained:
    return model, PostLocalSGDOptimizer(MOMENTUM(model.parameters()), GossipAverager(model.parameters(), 2))


@wrapped
def with_fsdp2(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh(model[0].weight.device.type, (dist.get_world_size(),))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


@wrapped
def with_fsdp(model: nn.Module) -> nn.Module:
    return FullyShardedDataParallel(model, device_id=model[0].weight.device)


WAYS: dict[str, Way] = {
    "plain": wrapped(DistributedDataParallel),
    "views": wrapped(partial(DistributedDataParallel, gradient_as_bucket_view=True)),
    "static graph": wrapped(partial(DistributedDataParallel, static_graph=True)),
    "bfloat16": wrapped(partial(DistributedDataParallel, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16))),
    "int8": with_hook("int8:memory=ef21"),
    "power_sgd": with_hook("power_sgd:start=2,min_rate=0"),
    "a hook in Python": with_own_hook,
    "SyncBatchNorm": with_batch_normalization,
    "ZeRO": with_zero,
    "ZeRO in the backward pass": with_zero_in_backward,
    "steps in the hook": with_steps_in_the_hook,
    "periodic averages": with_periodic_averages,
    "Streaming DiLoCo": with_diloco,
    "gossip": with_gossip,
    "PyTorch's DDP": wrapped(nn.parallel.DistributedDataParallel),
    "PyTorch's DDP with our int8": with_torch_and_our_hook,
    "PyTorch's FSDP": with_fsdp,
    "PyTorch's FSDP2": with_fsdp2,
}
# The ranks have other parameters than each other: those between two exchanges, or shards.
APART = {"periodic averages", "Streaming DiLoCo", "gossip", "PyTorch's FSDP"}
