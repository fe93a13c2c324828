# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Four ranks: meshes, pipelines, Join, every way of sharding, a checkpoint of four ranks that two go on from."""
from __future__ import annotations

import os

import torch
import torch.distributed as td
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch_programs import BATCH, RANK, SIZE, make_model, meet, report, train

import gradwire  # noqa: F401

HALF = SIZE // 2


def sharded(mesh: DeviceMesh, seed: int = 3) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = make_model(seed)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), 0.01)


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict:
    parameters, moments = get_state_dict(model, optimizer)
    return {"model": parameters, "optimizer": moments}


def check_mesh(mesh: DeviceMesh) -> None:
    for name, mates in (("rows", [RANK % 2, RANK % 2 + 2]), ("columns", [RANK // 2 * 2, RANK // 2 * 2 + 1])):
        part = mesh[name]
        assert td.get_process_group_ranks(part.get_group()) == mates and part.get_local_rank() == mates.index(RANK)
        ours = torch.tensor([10**RANK])
        td.all_reduce(ours, group=part.get_group())
        assert ours.item() == sum(10**mate for mate in mates)
    everyone = torch.tensor([10**RANK])
    td.all_reduce(everyone, group=mesh["rows", "columns"]._flatten("everyone").get_group())
    assert everyone.item() == 1111

    whole = torch.arange(48.0).reshape(6, 8)
    tiles = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    assert tiles.to_local().shape == (3, 4) and torch.equal(tiles.full_tensor(), whole)
    for placements in ([Replicate(), Shard(0)], [Shard(1), Shard(0)], [Replicate(), Replicate()]):
        assert torch.equal(tiles.redistribute(mesh, placements).full_tensor(), whole)
    assert tiles.sum().full_tensor().item() == whole.sum()

    torch.manual_seed(1)
    plain, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(5, 8)
    expected = plain(x)
    split = parallelize_module(plain, mesh["columns"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    torch.testing.assert_close(split(x), expected)


def check_pipeline() -> None:
    """A stage a rank: the gradients of the stages are those of the whole model."""
    whole, parts = make_model(), [slice(0, 2), slice(2, 3), slice(3, 4), slice(4, 5)]
    stage = make_model()[parts[RANK]]
    x = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(0))
    goal = x.sum(1, keepdim=True)
    schedule = Schedule1F1B(PipelineStage(stage, RANK, SIZE, torch.device("cpu")), n_microbatches=4,
                            loss_fn=lambda found, right: (found - right).square().mean())
    schedule.step(*([x] if RANK == 0 else []), **({"target": goal} if RANK == SIZE - 1 else {}))
    (whole(x) - goal).square().mean().backward()
    for ours, right in zip(stage.parameters(), whole[parts[RANK]].parameters(), strict=True):
        torch.testing.assert_close(ours.grad, right.grad)


def uneven() -> list[float]:
    """Ranks with one to four batches under Join, then steps of all."""
    model = nn.parallel.DistributedDataParallel(make_model())
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    with Join([model]):
        for batch in range(RANK + 1):
            optimizer.zero_grad()
            model(torch.ones(2, 8) * (batch + 1)).square().mean().backward()
            optimizer.step()
    return train(model, optimizer, range(8))


results: dict[str, dict[str, list[float]]] = {}
for backend in ("gloo", "gradwire"):
    losses = results[backend] = {}
    folder = os.environ["MEET"] + "-checkpoint-" + backend
    meet(backend, "four")
    square = init_device_mesh("cpu", (HALF, HALF), mesh_dim_names=("rows", "columns"))
    check_mesh(square)
    check_pipeline()
    losses["uneven inputs"] = uneven()
    replica = nn.parallel.DistributedDataParallel(make_model())
    losses["zero"] = train(replica, ZeroRedundancyOptimizer(replica.parameters(), torch.optim.AdamW, lr=0.01), range(8))
    flat = FullyShardedDataParallel(make_model(), device_id=torch.device("cpu"))
    losses["flat shards"] = train(flat, torch.optim.AdamW(flat.parameters(), 0.01), range(8))
    losses["replicated shards"] = train(*sharded(square), range(8))
    model, optimizer = sharded(init_device_mesh("cpu", (SIZE,)))
    before = train(model, optimizer, range(4))
    dcp.save(state_of(model, optimizer), checkpoint_id=folder)
    losses["shards"] = before + train(model, optimizer, range(4, 8))
    td.destroy_process_group()
    if RANK < HALF:
        meet(backend, "two", HALF)
        model, optimizer = sharded(init_device_mesh("cpu", (HALF,)), seed=99)
        state = state_of(model, optimizer)
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        losses["shards, then half the ranks"] = before + train(model, optimizer, range(4, 8))
        td.destroy_process_group()
report(results)
