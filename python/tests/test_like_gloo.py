# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""gradwire.distributed, torch.distributed over the backend "gradwire" and DDP, beside PyTorch's over Gloo in the same processes."""
import copy
import pickle

import pytest
import torch
import torch.distributed as td

from gradwire import distributed as dist

GUARD = 300

PRELUDE = """
import os, torch, torch.distributed as td
from torch import nn
import gradwire
from gradwire import distributed as dist
from gradwire.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
td.init_process_group("gloo", store=td.FileStore(os.environ["MEET"] + "gloo", size), rank=rank, world_size=size)
dist.init_process_group(store=dist.FileStore(os.environ["MEET"] + "ours", size), rank=rank, world_size=size)
"""

CALLS = PRELUDE + """
plugged = td.new_group(backend="gradwire")

def chalf():
    return torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex32) * (rank + 1)

def exchanged(d, group, shape_in, shape_out, splits_out=None, splits_in=None):
    output = torch.zeros(shape_out)
    d.all_to_all_single(output, torch.arange(12.0).view(shape_in) + 100 * rank, splits_out, splits_in, group=group)
    return output

def reduced(d, group, tensor, call="all_reduce", **arguments):
    getattr(d, call)(tensor, group=group, **arguments)
    return tensor

def scattered(d, group, call, inputs):
    output = torch.zeros(2, dtype=torch.complex32)
    getattr(d, call)(output, inputs, group=group)
    return output

def sparse(entries):
    indices = torch.tensor([[rank, 2, 2][:entries]])
    return torch.sparse_coo_tensor(indices, torch.arange(2.0 * entries).view(entries, 2) + rank, (4, 2))

def waited(d, group):
    tensor = sparse(2)
    work = d.all_reduce(tensor, group=group, async_op=True)
    work.wait()
    return tensor

uneven = ([1, 2], [2, 4]) if rank == 0 else ([2, 1], [4, 2])
CALLS = {
    "all_to_all_single, rows of another length": lambda d, g: exchanged(d, g, (4, 3), (2, 6)),
    "all_to_all_single, into one row of numbers": lambda d, g: exchanged(d, g, (4, 3), (12,)),
    "all_to_all_single, with splits": lambda d, g: exchanged(d, g, (6, 2), (4, 3), [2, 2], [3, 3]),
    "all_to_all_single, with uneven splits": lambda d, g: exchanged(d, g, (6, 2), (3, 4), *uneven),
    "all_reduce of complex32": lambda d, g: reduced(d, g, chalf()),
    "reduce of complex32": lambda d, g: reduced(d, g, chalf(), "reduce", dst=0)[: 2 - 2 * rank],
    "reduce_scatter of complex32": lambda d, g: scattered(d, g, "reduce_scatter", [chalf(), 2 * chalf()]),
    "reduce_scatter_tensor of complex32":
        lambda d, g: scattered(d, g, "reduce_scatter_tensor", torch.cat([chalf(), 2 * chalf()])),
    "all_reduce of sparse tensors": lambda d, g: reduced(d, g, sparse(2)),
    "all_reduce of sparse tensors with other numbers of entries": lambda d, g: reduced(d, g, sparse(rank)),
    "all_reduce of sparse tensors that are not coalesced": lambda d, g: reduced(d, g, sparse(3)),
    "all_reduce of sparse tensors, asynchronously": waited,
}
def plain(tensor):
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor.to_dense()

for name, call in CALLS.items():
    theirs = call(td, None)
    for ours in (call(dist, None), call(td, plugged)):
        assert ours.dtype == theirs.dtype and ours.layout == theirs.layout and ours.shape == theirs.shape, name
        assert torch.equal(plain(theirs), plain(ours)), (name, theirs, ours)

# What neither does.
REFUSED = {
    "a sparse maximum": lambda d: d.all_reduce(sparse(2), op=d.ReduceOp.MAX),
    "a product of complex32": lambda d: d.all_reduce(chalf(), op=d.ReduceOp.PRODUCT),
    "a conjugated complex32": lambda d: d.all_reduce(chalf().conj()),
    "an all_reduce of CSR": lambda d: d.all_reduce(torch.eye(3).to_sparse_csr()),
    "no groups": lambda d: d.new_subgroups_by_enumeration([]),
}
for name, call in REFUSED.items():
    for d in (td, dist):
        try:
            call(d)
        except (ValueError, RuntimeError, NotImplementedError):
            continue
        raise AssertionError(f"{d.__name__} did not refuse {name}")
dist.destroy_process_group()
td.destroy_process_group()
"""


# To c10d, several tensors in one call are parts of one message.
LISTS = PRELUDE + """
plugged = td.new_group(backend="gradwire")

def pair(dtype=torch.float32):
    return [torch.tensor([2.0 * rank + i, 1.0], dtype=dtype) for i in range(2)]

def broadcast(group):
    options, tensors = td.BroadcastOptions(), pair()
    options.rootRank, options.rootTensor = 1, 1
    work = group.broadcast(tensors, options)
    work.wait()
    return tensors + work.get_future().value()

def all_reduce(group, tensors, op=td.ReduceOp.SUM):
    options = td.AllreduceOptions()
    options.reduceOp = op
    group.allreduce(tensors, options).wait()
    return [each.to_dense() if each.is_sparse else each for each in tensors]

def all_gather(group, n):
    lists = [[torch.zeros(2) for _ in range(n * size)] for _ in range(n)]
    work = group.allgather(lists, [torch.tensor([n * rank + i, 5.0]) for i in range(n)])
    work.wait()
    value = work.get_future().value()
    return [each for gathered in lists + (value if n > 1 else [value]) for each in gathered]

CALLS = [broadcast, lambda g: all_gather(g, 1), lambda g: all_gather(g, 2), lambda g: all_gather(g, 3),
         lambda g: all_reduce(g, [each.to_sparse() for each in pair()]), lambda g: all_reduce(g, pair(torch.int64), td.ReduceOp.BXOR)]
for op in (td.ReduceOp.SUM, td.ReduceOp.PRODUCT, td.ReduceOp.MIN, td.ReduceOp.MAX):
    CALLS.append(lambda g, op=op: all_reduce(g, pair(), op))
for number, call in enumerate(CALLS):
    theirs, ours = call(td.group.WORLD), call(plugged)
    assert len(theirs) == len(ours) and all(map(torch.equal, theirs, ours)), (number, theirs, ours)
dist.destroy_process_group()
td.destroy_process_group()
"""

# What Python reads from a backend of torch.distributed.
OPTIONS = """
import copy, os, datetime, torch, torch.distributed as td
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = td.FileStore(os.environ["MEET"], size)
td.init_process_group("gradwire", store=store, rank=rank, world_size=size, timeout=datetime.timedelta(seconds=50))
backend = td.group.WORLD._get_backend(torch.device("cpu"))
assert isinstance(backend, torch._C._distributed_c10d.Backend) and backend.rank() == rank
assert backend.options.backend == "gradwire" and backend.options._timeout == datetime.timedelta(seconds=50)
for set_timeout, seconds in ((td.group.WORLD.set_timeout, 23), (backend._set_default_timeout, 24)):
    set_timeout(datetime.timedelta(seconds=seconds))
    assert backend.options._timeout == datetime.timedelta(seconds=seconds)
for twin in (copy.copy(backend.options), copy.deepcopy(backend.options)):  # torch.distributed.split_group() makes one
    assert twin is not backend.options and twin._timeout == backend.options._timeout
alone = td.new_group([1], timeout=datetime.timedelta(seconds=7), use_local_synchronization=True)
if rank == 1:
    options = alone._get_backend(torch.device("cpu")).options
    assert options._timeout == datetime.timedelta(seconds=7)
    assert list(options.global_ranks_in_group) == [1] and options.group_name == alone.group_name
td.barrier()
td.destroy_process_group()
"""


def run(run_script, source):
    processes = run_script(source, 2)
    outputs = [process.communicate(timeout=GUARD)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(outputs)


def test_collectives_do_what_they_do_over_gloo(run_script):
    run(run_script, CALLS)


def test_a_list_of_tensors_is_one_message_to_c10d(run_script):
    run(run_script, LISTS)


def test_a_backend_of_torch_distributed_has_options(run_script):
    run(run_script, OPTIONS)


DDP = PRELUDE + """
from torch.utils.checkpoint import checkpoint

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 2)
        self.unused = nn.Linear(2, 2)

    def forward(self, x, again=False):
        y = self.norm(self.first(x))
        if again:  # each pass has a graph of its own: DDP needs the static graph
            y = checkpoint(self.first, checkpoint(self.first, y[:, :4], use_reentrant=True)[:, :4], use_reentrant=True)
        return self.last(y)

DDPS = (nn.parallel.DistributedDataParallel, DistributedDataParallel)

def inputs(step):
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(10 * step + rank))

for kind in DDPS:
    module = Net()
    ddp = kind(module)
    assert [id(p) for p in ddp._module_parameters] == [id(p) for p in module.parameters()]
    assert [id(b) for b in ddp.modules_buffers] == [id(b) for b in module.buffers()]
    assert (ddp.device, ddp.device_type, ddp._delay_all_reduce_params) == (torch.device("cpu"), "cpu", [])

def static(kind, hook):
    module = Net()
    ddp = kind(module)
    if hook is not None:
        ddp.register_comm_hook(None, hook)
    ddp._set_static_graph()
    assert ddp.static_graph and ddp._get_ddp_logging_data()["static_graph"]
    for step in range(3):
        module.zero_grad()
        ddp(inputs(step), again=True).square().sum().backward()
    kind(Net())._set_static_graph()
    late = kind(Net(), find_unused_parameters=True)
    late(inputs(0)).sum().backward()
    try:
        late._set_static_graph()
    except RuntimeError:
        return [None if p.grad is None else p.grad.clone() for p in module.parameters()]
    raise AssertionError("_set_static_graph() after a forward was taken")

def halved(state, bucket):
    future = torch.futures.Future()
    buffer = bucket.buffer().div_(2)
    future.set_result(buffer)
    return future

for hook in (None, halved):
    for a, b in zip(*(static(kind, hook) for kind in DDPS)):
        assert (a is None) == (b is None) and (a is None or torch.allclose(a, b, rtol=1e-4, atol=1e-6)), (hook, a, b)

# A hook with a state of its own, and after a Join has begun.
ours = DistributedDataParallel(Net(), find_unused_parameters=True)
ours.register_comm_hook(*gradwire.hooks.make("power_sgd:rank=1,start=2"))
ours._set_static_graph()
for step in range(4):
    ours(inputs(step)).square().sum().backward()
assert ours.static_graph and ours._core.iterations() == 4
ours = DistributedDataParallel(Net())
ours.set_bucket_order([name for name, _ in reversed(list(ours.module.named_parameters()))])
try:
    ours._set_static_graph()
except ValueError as error:
    assert "set_bucket_order()" in str(error)
else:
    raise AssertionError("_set_static_graph() after set_bucket_order() was taken, and the order was lost")
ours = DistributedDataParallel(Net(), find_unused_parameters=True)
with ours.join():
    try:
        ours._set_static_graph()
    except ValueError as error:
        assert "before the first forward" in str(error)
    else:
        raise AssertionError("_set_static_graph() within a Join was taken")
    ours(inputs(0)).sum().backward()

def buckets(kind, caps):
    ddp = kind(Net(), bucket_cap_mb=7, bucket_cap_mb_list=caps, find_unused_parameters=True)
    sizes = [ddp._get_ddp_logging_data()["bucket_sizes"]]
    for step in range(3):
        ddp(inputs(step)).square().sum().backward()
    data = ddp._get_ddp_logging_data()
    return sizes + [data["bucket_cap_bytes"], data["bucket_sizes"]]

for caps in ([100 / 2**20, 30 / 2**20], [20 / 2**20, 100 / 2**20, 10 / 2**20], [1], []):
    theirs, ours = (buckets(kind, caps) for kind in DDPS)
    assert theirs == ours, (caps, theirs, ours)

def logged(kind):
    ddp = kind(Net(), find_unused_parameters=True, broadcast_buffers=False, bucket_cap_mb=3)
    before = ddp._get_ddp_logging_data()
    for step in range(3):
        ddp(inputs(step)).square().sum().backward()
    return before, ddp._get_ddp_logging_data()

# The same names have values of the same types, and what is known before the first iteration is the same.
for number, (theirs, ours) in enumerate(zip(*map(logged, DDPS))):
    common = theirs.keys() & ours.keys()
    assert {name: type(theirs[name]) for name in common} == {name: type(ours[name]) for name in common}
    same = {"rank", "world_size", "module_name", "broadcast_buffers", "find_unused_parameters", "gradient_as_bucket_view",
            "num_parameter_tensors", "total_parameter_size_bytes", "bucket_cap_bytes", "device_ids"}
    if number == 1:
        same |= {"has_rebuilt_buckets", "unused_parameter_size"}
        assert not ours["has_error"]
    assert same <= common, same - common
    assert {name: theirs[name] for name in same} == {name: ours[name] for name in same}

names = ["first.weight", "first.bias"]
for kind in DDPS:
    module = Net()
    parameters = dict(module.named_parameters())
    ddp = kind(module, find_unused_parameters=True, param_to_hook_all_reduce=module.last.weight,
               delay_all_reduce_named_params=[(name, parameters[name]) for name in names])
    assert [id(p) for p in ddp._delay_all_reduce_params] == [id(parameters[name]) for name in names]
    assert [id(p) for p in ddp._module_parameters] == [id(p) for n, p in parameters.items() if n not in names]
dist.destroy_process_group()
td.destroy_process_group()
"""


def test_private_names_of_ddp_mean_what_they_mean_in_pytorch(run_script):
    run(run_script, DDP)


NAMES = ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"]


@pytest.mark.parametrize("name", NAMES)
def test_reductions_are_the_numbers_that_pytorchs_are(name):
    ours, theirs = getattr(dist.ReduceOp, name), getattr(td.ReduceOp, name)
    assert int(ours) == int(theirs) and ours.value == theirs.value and ours.name == theirs.name
    assert [0, 1, 2, 3, 4, 5, 6, 7, 8][ours] == int(theirs)
    assert ours == int(theirs) and ours == theirs and theirs == ours and hash(ours) == hash(theirs)
    assert ours != "SUM" and ours is not None and ours != int(theirs) + 1
    assert {theirs: "found"}[ours] == "found"
    for again in (pickle.loads(pickle.dumps(ours)), copy.copy(ours), copy.deepcopy(ours), dist.ReduceOp(ours)):
        assert again == ours and hash(again) == hash(ours) and {ours: 1}[again] == 1
    assert [other for other in NAMES if getattr(dist.ReduceOp, other) == ours] == [name]
    assert isinstance(ours, dist.ReduceOp.RedOpType) and getattr(dist.ReduceOp.RedOpType, name) == ours


def test_a_premultiplied_sum_is_more_than_its_number():
    two = dist.ReduceOp.premul_sum(2.0)
    assert int(two) == 8 and two != 8 and two != dist.ReduceOp.premul_sum(3.0)
    again = pickle.loads(pickle.dumps(two))
    assert again == two and hash(again) == hash(two)
