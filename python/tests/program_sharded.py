# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Four ranks: FSDP on one and two dimensions, tensors of a mesh, a checkpoint of four ranks that two go on from."""
from __future__ import annotations

import os

import torch
import torch.distributed as td
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch_programs import RANK, SIZE, make_model, meet, report, train

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


results: dict[str, dict[str, list[float]]] = {}
for backend in ("gloo", "gradwire"):
    losses = results[backend] = {}
    folder = os.environ["MEET"] + "-checkpoint-" + backend
    meet(backend, "four")
    square = init_device_mesh("cpu", (HALF, HALF), mesh_dim_names=("rows", "columns"))
    check_mesh(square)
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
