# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""gradwire beside PyTorch over Gloo, in the same processes."""

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


def run(run_script, source):
    processes = run_script(source, 2)
    outputs = [process.communicate(timeout=GUARD)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(outputs)


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
    try:
        kind(Net())._set_static_graph()
        late = kind(Net(), find_unused_parameters=True)
        late(inputs(0)).sum().backward()
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
ours = DistributedDataParallel(Net(), find_unused_parameters=True)
with ours.join():
    try:
        ours._set_static_graph()
    except ValueError as error:
        assert "before the first forward" in str(error)
    else:
        raise AssertionError("_set_static_graph() within a Join was taken")
    ours(inputs(0)).sum().backward()

names = ["first.weight", "first.bias"]
for kind in DDPS:
    module = Net()
    parameters = dict(module.named_parameters())
    ddp = kind(module, find_unused_parameters=True, param_to_hook_all_reduce=module.last.weight,
               delay_all_reduce_named_params=[(name, parameters[name]) for name in names])
    assert [id(p) for p in ddp._delay_all_reduce_params] == [id(parameters[name]) for name in names]
dist.destroy_process_group()
td.destroy_process_group()
"""


def test_private_names_of_ddp_mean_what_they_mean_in_pytorch(run_script):
    run(run_script, DDP)
