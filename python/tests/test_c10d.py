# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own distributed programs over the backend "gradwire", beside Gloo in the same processes."""
import json

import forks

GUARD = 400

# The programs import it; it imports what optimizers of PyTorch import at their first step, too.
forks.import_first("torch.distributed.fsdp")

PROGRAMS = """
import json, os, sys, torch, torch.distributed as td
from torch import nn
import gradwire
from gradwire.distributed.algorithms.ddp_comm_hooks import default_hooks

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
out = {}

def model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

def train(wrapped, steps=6):
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.05)
    losses = []
    for step in range(steps):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step * size + rank))
        loss = (wrapped(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        td.all_reduce(total)
        losses.append(total.item())
    return losses

for backend in ("gloo", "gradwire"):
    store = td.FileStore(os.environ["MEET"] + backend, size)
    td.init_process_group(backend, store=store, rank=rank, world_size=size)
    out[backend] = results = {"name": td.get_backend()}
    objects = [None] * size
    td.all_gather_object(objects, {"rank": rank})
    results["objects"] = objects
    half = td.new_group(list(range(size)))
    tensor = torch.ones(3) * (rank + 1)
    td.all_reduce(tensor, td.ReduceOp.MAX, group=half)
    results["max"] = tensor.tolist()
    DDP = nn.parallel.DistributedDataParallel
    results["ddp"] = train(DDP(model()))
    hooked = DDP(model())
    hooked.register_comm_hook(None, default_hooks.bf16_compress_hook)
    results["bf16"] = train(hooked)
    hooked = DDP(model())
    hooked.register_comm_hook(*gradwire.hooks.power_sgd(rank=32, start=2, min_compression_rate=0))
    results["power_sgd"] = train(hooked)
    hooked = DDP(model())
    hooked.register_comm_hook(*gradwire.hooks.make("int8"))
    results["int8"] = train(hooked)
    state, hook = gradwire.hooks.auto()
    hooked = DDP(model())
    hooked.register_comm_hook(state, hook)
    for step in range(40):
        hooked(torch.randn(4, 8)).sum().backward()
    choices = [None] * size
    td.all_gather_object(choices, state.choices)
    assert choices[0] and all(other == choices[0] for other in choices), choices
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    sharded = model()
    fully_shard(sharded, mesh=init_device_mesh("cpu", (size,)))
    results["fsdp"] = train(sharded)
    if backend == "gradwire":
        ours = gradwire.from_c10d(td.group.WORLD)
    else:
        ours = gradwire.from_c10d(td.group.WORLD, gradwire.distributed.FileStore(os.environ["MEET"] + "ours", size))
    results["gradwire_ddp"] = train(gradwire.nn.parallel.DistributedDataParallel(model(), process_group=ours))
    td.destroy_process_group()

if rank == 0:
    print(json.dumps(out), flush=True)
"""


def test_pytorchs_programs_train_to_the_same_losses_as_over_gloo(run_script):
    processes = run_script(PROGRAMS, 2)
    outputs = [process.communicate(timeout=GUARD)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(outputs)
    result = json.loads(outputs[0].splitlines()[-1])
    gloo, ours = result["gloo"], result["gradwire"]
    assert (gloo["name"], ours["name"]) == ("gloo", "gradwire")
    assert gloo["objects"] == ours["objects"] and gloo["max"] == ours["max"]
    for what in ("ddp", "fsdp", "gradwire_ddp"):
        assert all(abs(a - b) <= 1e-5 * abs(a) for a, b in zip(gloo[what], ours[what], strict=True)), (what, result)
    # Lossy hooks follow the plain run from afar, on either engine.
    for what in ("bf16", "power_sgd", "int8"):
        for losses in (gloo[what], ours[what]):
            assert all(abs(a - b) <= 0.05 * abs(a) for a, b in zip(gloo["ddp"], losses, strict=True)), (what, result)


# Ranks that are forked from a process that has imported torch, over one store that outlives them.
FORKS = """
import os, sys, torch, torch.distributed as td
import gradwire

def run(size, attempt, body):
    pids = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            os.environ["TORCHELASTIC_RESTART_COUNT"] = str(attempt)
            try:
                body(rank, size, attempt)
                os._exit(0)
            except BaseException as error:
                print(f"rank {rank}, attempt {attempt}: {type(error).__name__}: {error}", flush=True)
                os._exit(1)
        pids.append(pid)
    assert all(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 for pid in pids)

def init(rank, size):
    td.init_process_group("gradwire", store=td.FileStore(os.environ["MEET"], -1), rank=rank, world_size=size)

def sum_of_ranks(group=None):
    tensor = torch.tensor([10 ** td.get_rank()])
    td.all_reduce(tensor, group=group)
    return int(tensor.item())
"""

RESTARTS = FORKS + """
def lives(rank, size, attempt):
    for life in range(2):
        init(rank, size)
        assert sum_of_ranks() == 11
        if attempt == 0 and life == 1:
            os._exit(0)  # as one that was killed
        td.destroy_process_group()

for attempt in range(3):
    run(2, attempt, lives)
print("well", flush=True)
"""

# Two agents of several hosts, of which one alone counts the restart: its own ranks had failed.
UNEVEN_RESTARTS = FORKS + """
def lives(rank, size, attempt):
    os.environ.update(GROUP_WORLD_SIZE="2", TORCHELASTIC_RUN_ID="job")
    if rank > 0:
        os.environ["TORCHELASTIC_RESTART_COUNT"] = "0"
    init(rank, size)
    assert sum_of_ranks() == 111
    pair = td.new_group([1, 2], backend="gradwire")
    assert rank == 0 or sum_of_ranks(pair) == 110
    if attempt < 2:
        os._exit(0)  # as one that was killed
    td.destroy_process_group()
    init(rank, size)
    assert sum_of_ranks() == 111
    td.destroy_process_group()

for attempt in range(3):
    run(3, attempt, lives)
print("well", flush=True)
"""

# One rank lives on, and meets another process each time, in a store that only the two know.
OTHER_PARTNERS = FORKS + """
from datetime import timedelta

def meet(life, rank):
    store = td.FileStore(os.environ["MEET"] + str(life), -1)
    td.init_process_group("gradwire", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    assert sum_of_ranks() == 11
    td.destroy_process_group()

partners = []
for life in range(3):
    go, went = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(go, 1)
        try:
            meet(life, 1)
            os._exit(0)
        except BaseException as error:
            print(f"life {life}: {type(error).__name__}: {error}", flush=True)
            os._exit(1)
    partners.append((went, pid))
for life, (go, pid) in enumerate(partners):
    os.write(go, b"x")
    meet(life, 0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
print("well", flush=True)
"""

SUBGROUPS = FORKS + """
def groups_in_groups(rank, size, attempt):
    init(rank, size)
    mine, _ = td.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    alone, _ = td.new_subgroups(group_size=1, group=mine)
    assert sum_of_ranks(alone) == 10 ** rank and sum_of_ranks(mine) == (101, 1010)[rank % 2]
    # Different pairs on different ranks, which PyTorch gives one name.
    pair, _ = td.new_subgroups(group_size=2, group=mine)
    assert sum_of_ranks(pair) == (101, 1010)[rank % 2]
    td.destroy_process_group()

run(4, 0, groups_in_groups)
print("well", flush=True)
"""


def test_ranks_that_are_started_anew_meet_again_in_the_store_of_their_agent(run_script):
    (process,) = run_script(RESTARTS, 1)
    output, _ = process.communicate(timeout=GUARD)
    assert process.returncode == 0 and output == "well\n", output


def test_ranks_of_agents_that_count_their_restarts_differently_meet(run_script):
    (process,) = run_script(UNEVEN_RESTARTS, 1)
    output, _ = process.communicate(timeout=GUARD)
    assert process.returncode == 0 and output == "well\n", output


def test_a_rank_that_lives_on_meets_other_processes_in_other_stores(run_script):
    (process,) = run_script(OTHER_PARTNERS, 1)
    output, _ = process.communicate(timeout=GUARD)
    assert process.returncode == 0 and output == "well\n", output


def test_subgroups_of_subgroups(run_script):
    (process,) = run_script(SUBGROUPS, 1)
    output, _ = process.communicate(timeout=GUARD)
    assert process.returncode == 0 and output == "well\n", output


# What PyTorch's users do over Gloo, and what a hook with a group of its own must do.
AS_OVER_GLOO = """
import json, os, torch, torch.distributed as td
from torch import nn
import gradwire

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
out = {}
for backend in ("gloo", "gradwire"):
    store = td.FileStore(os.environ["MEET"] + backend, size)
    td.init_process_group(backend, store=store, rank=rank, world_size=size)
    results = out[backend] = {}
    rows = torch.arange(size * 2.0).reshape(size, 2) + 100 * rank
    sent = rows.clone()
    td.all_to_all_single(rows, sent)
    results["rows"] = rows.tolist()
    if backend == "gradwire":
        td.all_to_all_single(sent, sent)
        assert torch.equal(sent, rows), (sent, rows)
        several = [torch.full((1,), rank + 1.0).expand(4), torch.ones(2) * rank]
        td.all_reduce_coalesced(several)
        assert [each.tolist() for each in several] == [[10.0] * 4, [6.0] * 2], several
    lengths = [1, 3, 0, 2]
    part = torch.zeros(lengths[rank])
    td.reduce_scatter(part, [torch.arange(float(n)) + rank + n for n in lengths])
    results["part"] = part.tolist()
    expanded = torch.full((1, 2), rank + 1.0).expand(3, 2)
    td.all_reduce(expanded)
    results["expanded"] = expanded.tolist()
    sparse = nn.parallel.DistributedDataParallel(nn.Embedding(8, 2, sparse=True))
    sparse.register_comm_hook(*(gradwire.hooks.make("int8") if backend == "gradwire" else (None, lambda _, bucket:
        td.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0] / size))))
    sparse(torch.tensor([rank, 7])).sum().backward()
    results["sparse"] = sparse.module.weight.grad.to_dense().tolist()
    if backend == "gradwire":
        counts = torch.tensor([-7 * (rank + 1), 2 * rank, 5])  # sums -70, 12, 20: /4 is -17.5, 3, 5
        td.all_reduce(counts, td.ReduceOp.AVG)
        assert counts.tolist() == [-17, 3, 5], counts
        halves = [td.new_group([0, 1]), td.new_group([2, 3])]
        half = halves[rank // 2]
        for group in (half, gradwire.from_c10d(half)):
            for hook in ("allreduce", "int8", "fp16_compress"):
                model = nn.Linear(4, 1, bias=False)
                wrapped = nn.parallel.DistributedDataParallel(model, process_group=half)
                wrapped.register_comm_hook(*gradwire.hooks.make(hook, group=group))
                wrapped(torch.full((1, 4), rank + 1.0)).sum().backward()
                mean = 1.5 if rank < 2 else 3.5
                assert torch.allclose(model.weight.grad, torch.full((1, 4), mean), rtol=0.02), (hook, model.weight.grad)
        from gradwire.distributed.algorithms.ddp_comm_hooks import default_hooks, optimizer_overlap_hooks
        from gradwire.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as post_local
        # Before it begins, post-local SGD averages over the group of the model.
        model = nn.Linear(4, 1, bias=False)
        wrapped = nn.parallel.DistributedDataParallel(model)
        state = post_local.PostLocalSGDState(None, gradwire.from_c10d(half), 100)
        wrapped.register_comm_hook(state, post_local.post_localSGD_hook)
        wrapped(torch.full((1, 4), rank + 1.0)).sum().backward()
        assert torch.allclose(model.weight.grad, torch.full((1, 4), 2.5)), model.weight.grad
        # Each parameter steps by its own gradient, whatever the buckets are: layers of one size, in several buckets.
        def layers():
            torch.manual_seed(0)
            return nn.parallel.DistributedDataParallel(nn.Sequential(*(nn.Linear(16, 16) for _ in range(5))), bucket_cap_mb=0.003)
        ours, plain = layers(), layers()
        make_optimizer = lambda params: torch.optim.SGD(params, 0.1, momentum=0.9)
        ours.register_comm_hook(None, optimizer_overlap_hooks.hook_then_optimizer(default_hooks.allreduce_hook, make_optimizer))
        optimizer = make_optimizer(list(plain.parameters()))
        for step in range(4):
            for wrapped in (ours, plain):
                wrapped.zero_grad()
                wrapped(torch.full((2, 16), step + rank + 1.0)).square().mean().backward()
            optimizer.step()
            for mine, other in zip(ours.parameters(), plain.parameters()):
                assert torch.allclose(mine, other, rtol=1e-5, atol=1e-6), step
    td.destroy_process_group()
print(json.dumps(out), flush=True)
"""


COMPLEX = """
import os, torch, torch.distributed as td, gradwire
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
td.init_process_group("gradwire", store=td.FileStore(os.environ["MEET"], size), rank=rank, world_size=size)

def gradients(hook, steps):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(16, 24, dtype=torch.cfloat), torch.nn.Linear(24, 4, dtype=torch.cfloat))
    wrapped = torch.nn.parallel.DistributedDataParallel(net)
    if hook:
        wrapped.register_comm_hook(*gradwire.hooks.make(hook))
    total = None
    x = torch.randn(4, 16, dtype=torch.cfloat, generator=torch.Generator().manual_seed(rank))
    for step in range(steps):
        net.zero_grad()
        wrapped(x).abs().sum().backward()
        flat = torch.cat([torch.view_as_real(p.grad).flatten() for p in net.parameters()])
        total = flat if total is None else total + flat
    everyone = [torch.empty_like(total) for _ in range(size)]
    td.all_gather(everyone, total)
    assert all(torch.equal(other, everyone[0]) for other in everyone), f"{hook}: ranks differ"
    return total / steps

exact = gradients(None, 1)
for hook in ("power_sgd:rank=2,start=2,min_rate=0", "top_k:ratio=0.2,memory=error_feedback", "int8:memory=ef21"):
    # With a memory, the mean of many steps is the average, in each half of the bucket.
    mean = gradients(hook, 60)
    for half in range(2):
        part = slice(half * len(exact) // 2, (half + 1) * len(exact) // 2)
        error = (mean[part] - exact[part]).norm() / exact[part].norm()
        assert error < 0.15, (hook, half, error)
td.destroy_process_group()
"""


CHECKED = """
import os
os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
import torch, torch.distributed as td, gradwire
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
td.init_process_group("gradwire", store=td.FileStore(os.environ["MEET"], size), rank=rank, world_size=size)
assert type(td.group.WORLD._get_backend(torch.device("cpu"))).__name__ == "_ProcessGroupWrapper"

def refused(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}")

tensor = torch.ones(3)
td.all_reduce(tensor)
assert tensor.tolist() == [2.0] * 3, tensor
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
model(torch.ones(2, 3) * rank).sum().backward()
assert model.module.weight.grad.tolist() == [[1.0] * 3], model.module.weight.grad
refused(RuntimeError, "Detected mismatch between collectives", lambda: td.all_reduce(torch.ones(3 + rank)))
for group in (td.group.WORLD, td.new_group([0, 1], group_desc="pair")):
    outputs = [torch.ones(2) for _ in range(size)]
    refused(ValueError, f"rank {rank} of group '{group.group_name}' (",
            lambda: td.all_gather(outputs, torch.ones(3), group=group))
td.destroy_process_group()
"""


def test_under_pytorchs_check_of_collectives_errors_name_the_group(run_script):
    for process in run_script(CHECKED, 2, anew=True):
        text, _ = process.communicate(timeout=GUARD)
        assert process.returncode == 0, text


def test_hooks_see_all_of_complex_parameters(run_script):
    for process in run_script(COMPLEX, 2):
        text, _ = process.communicate(timeout=GUARD)
        assert process.returncode == 0, text


def test_what_gloo_takes_and_hooks_over_a_part_of_the_ranks(run_script):
    processes = run_script(AS_OVER_GLOO, 4)
    outputs = [process.communicate(timeout=GUARD)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(outputs)
    for output in outputs:
        result = json.loads(output.splitlines()[-1])
        assert result["gloo"].keys() == result["gradwire"].keys()
        assert result["gloo"] == result["gradwire"]
