# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What the step recorder and torch.profiler see of Python programs that say nothing of them."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

from gradwire.report import recorded

GUARD = 120
BUILD = pathlib.Path(os.environ.get("GRADWIRE_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build"))
RANKS, STEPS = 2, 6

TRAINING = """
import torch
import gradwire
import gradwire.distributed as dist
from gradwire.nn.parallel import DistributedDataParallel

dist.init_process_group("shm")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
ddp = DistributedDataParallel(model, bucket_cap_mb=0.01, lanes=LANES)
HOOK
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
def train(steps):
    for step in range(steps):
        loss = ddp(torch.randn(16, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        MORE
train(STEPS)
REST
"""

TORCH_DDP = """
import collections
import torch
import torch.utils.checkpoint
import torch.distributed as dist

dist.init_process_group("gradwire")
class Outputs:  # PyTorch does not look into it, but must for a static graph
    def __init__(self, loss):
        self.loss = loss

if STATIC:
    Outputs = collections.namedtuple("Outputs", "loss")

class Model(torch.nn.Linear):
    def forward(self, x):
        return Outputs(super().forward(x).sum())

class Checkpointed(torch.nn.Module):
    def __init__(self, *sizes):
        super().__init__()
        self.first, self.last = torch.nn.Linear(64, 12), torch.nn.Linear(12, 260)  # as many elements as in Model

    def forward(self, x):
        for layer in (self.first, self.last):
            x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=True)
        return Outputs(x.sum())

ddp = torch.nn.parallel.DistributedDataParallel(MODEL(64, 64), static_graph=STATIC)
for step in range(6):
    x = torch.randn(16, 64, requires_grad=True)
    STEP
dist.destroy_process_group()
"""

# Steps of PyTorch's DistributedDataParallel, with passes that average nothing.
TORCH_STEPS = {
    "plain": "ddp(x).loss.backward()",
    "checkpoints": "ddp(x).loss.backward()",
    "accumulation": "with ddp.no_sync(): ddp(x).loss.backward()\n    ddp(x).loss.backward()",
    "evaluation": "with torch.no_grad(): ddp(x)\n    ddp(x).loss.backward()",
    "penalty": "loss = ddp(x).loss; (slope,) = torch.autograd.grad(loss, x, create_graph=True); (loss + slope.sum()).backward()",
}


def run(tmp_path, text, *options):
    """Runs the program on two ranks that record; returns what they recorded."""
    program = tmp_path / "train.py"
    program.write_text(text)
    records = tmp_path / "records"
    command = [str(BUILD / "bin" / "gradwire-run"), "-n", str(RANKS), "--record", str(records), *options, sys.executable,
               str(program)]
    job = subprocess.run(command, capture_output=True, text=True, timeout=GUARD, check=False)
    assert job.returncode == 0, job.stderr
    assert "Warning" not in job.stderr, job.stderr
    return recorded.read_folder(str(records))


def training(lanes="-1", hook="", more="", rest=""):
    text = TRAINING.replace("LANES", lanes).replace("STEPS", str(STEPS)).replace("HOOK", hook).replace("REST", rest)
    return text.replace("        MORE\n", f"        {more}\n" if more else "")


@pytest.mark.parametrize("lanes", ["0", "2"])
def test_a_program_that_says_nothing_has_all_its_steps(tmp_path, lanes):
    hook = 'ddp.register_comm_hook(*gradwire.hooks.make("fp16_compress"))'
    for rank in run(tmp_path, training(lanes, hook)):
        steps = rank.of_kind(recorded.STEP)
        assert [event.step for event in steps] == list(range(STEPS)), "the last step ends with the process"
        assert rank.total.steps == STEPS
        for before, after in zip(steps, steps[1:]):
            assert before.end == after.begin
        for event in steps:
            assert event.begin == event.times[0] < event.times[1] < event.times[2] < event.times[3] <= event.end
        buckets = [event for event in rank.of_kind(recorded.BUCKET) if event.step == STEPS - 1]
        assert len(buckets) > 1
        assert sum(event.bytes for event in buckets) == 4 * 2 * (64 * 64 + 64)
        assert sum(event.sent for event in buckets) * 2 == sum(event.bytes for event in buckets), "2 ranks, half the bytes"
        assert {event.lane for event in buckets} <= ({-1} if lanes == "0" else {0, 1})
        for event in buckets:
            assert event.times[0] <= event.begin <= event.end <= steps[-1].times[3]
        calls = [event for event in rank.of_kind(recorded.CALL) if event.step == STEPS - 1 and event.bucket is not None]
        assert [call.name for call in calls] == ["all_reduce"] * len(buckets)
        assert rank.total.loss is None, "no loss was told"
        assert rank.has_buckets() and not rank.lacks_buckets()


def test_a_program_may_tell_its_loss_and_its_steps(tmp_path):
    ranks = run(tmp_path, training(more="gradwire.observe.tell_loss(loss); gradwire.observe.end_step()"))
    for rank in ranks:
        losses = [event.loss for event in rank.of_kind(recorded.LOSS)]
        assert len(losses) == STEPS and losses[-1] == rank.total.loss
        assert [row.loss for row in rank.course] == losses
        steps = rank.of_kind(recorded.STEP)
        assert all(before.end < after.begin for before, after in zip(steps, steps[1:]))


@pytest.mark.parametrize("kind, static", [*((kind, False) for kind in TORCH_STEPS), ("plain", True)])
def test_pytorchs_own_ddp_has_its_steps_and_collectives(tmp_path, kind, static):
    model = "Checkpointed" if kind == "checkpoints" else "Model"
    text = TORCH_DDP.replace("STEP", TORCH_STEPS[kind]).replace("STATIC", str(static)).replace("MODEL", model)
    for rank in run(tmp_path, text):
        steps = rank.of_kind(recorded.STEP)
        assert [event.step for event in steps] == list(range(STEPS)) and rank.total.steps == STEPS
        assert rank.lacks_buckets() and not rank.has_buckets()
        for event in steps:
            assert event.begin == event.times[0] < event.times[1] < event.times[2] < event.times[3] <= event.end
        for one, following in zip(steps, steps[1:]):
            assert one.end == following.begin
        calls = [event for event in rank.of_kind(recorded.CALL) if event.name == "all_reduce"]
        gradients = [event for event in calls if event.bytes == 4 * (64 * 64 + 64)]
        assert [event.step for event in gradients] == list(range(STEPS))
        for event, step in zip(gradients, steps, strict=True):
            assert step.times[1] < event.begin <= event.end < step.times[3], "from the first gradient until the averages"


# PyTorch's DistributedDataParallel over gloo, in a process that also has a group over gradwire.
TORCH_FEATURES = """
import copy
import hashlib
import io
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
dist.barrier(dist.new_group(backend="gradwire"))
rank = dist.get_rank()


def make(**options):
    torch.manual_seed(0)
    return DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)), **options)


def train(ddp, module=None):
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    torch.manual_seed(1 + rank)
    for _ in range(4):
        (ddp if module is None else module)(torch.randn(5, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return ddp


def hooked(state, hook):
    ddp = make()
    ddp.register_comm_hook(state, hook)
    try:
        ddp.register_comm_hook(None, allreduce_hook)
    except RuntimeError as error:
        assert "can only be called once" in str(error), error
    else:
        raise AssertionError("a second hook was taken")
    return train(ddp)


def builtin():
    ddp = make()
    ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    return train(ddp)


def joined():
    ddp = make()
    with ddp.join():
        for step in range(3 + rank):
            ddp(torch.ones(2, 8) * (step + rank)).sum().backward()
    return ddp


def saved():
    file = io.BytesIO()
    torch.save(train(make()), file)
    file.seek(0)
    return train(torch.load(file, weights_only=False))


def compiled_autograd():
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            ddp = make()
            return train(ddp, torch.compile(ddp, backend="eager"))


def compiled():
    ddp = make()
    return train(ddp, torch.compile(ddp, backend="eager"))


def grads():
    ddp, came = make(), []
    for parameter in ddp.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: came.append(float(parameter.grad.sum())))
    train(ddp)
    assert len(came) == 4 * 4, came
    return ddp


FEATURES = {
    "plain": lambda: train(make()),
    "a hook": lambda: hooked(None, fp16_compress_hook),
    "a hook with a state": lambda: hooked(PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook),
    "a hook of C++": builtin,
    "unused parameters": lambda: train(make(find_unused_parameters=True)),
    "a static graph": lambda: train(make(static_graph=True)),
    "gradients in buckets": lambda: train(make(gradient_as_bucket_view=True)),
    "join": joined,
    "a copy": lambda: train(copy.deepcopy(train(make()))),
    "a file": saved,
    "hooks of parameters": grads,
    "compiled": compiled,
    "compiled autograd": compiled_autograd,
}
for name, feature in FEATURES.items():
    values = torch.cat([parameter.detach().flatten() for parameter in feature().parameters()])
    print(f"{name}: {hashlib.sha256(values.numpy().tobytes()).hexdigest()}")
dist.destroy_process_group()
"""


def test_the_recorder_changes_nothing_in_pytorchs_ddp_over_another_backend(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(TORCH_FEATURES)
    records = tmp_path / "records"
    said = []
    for options in ([], ["--record", str(records)]):
        command = [str(BUILD / "bin" / "gradwire-run"), "-n", str(RANKS), *options, sys.executable, str(program)]
        job = subprocess.run(command, capture_output=True, text=True, timeout=GUARD, check=False)
        assert job.returncode == 0, job.stderr
        said.append(sorted(job.stdout.splitlines()))
    assert len(said[0]) == RANKS * 13 and said[0] == said[1]
    for rank in recorded.read_folder(str(records)):
        assert rank.total.steps >= 4 * 10, "the passes were seen"


def test_a_profiler_shows_buckets_hooks_and_collectives(tmp_path):
    rest = f"""
import json
with torch.profiler.profile() as profile:
    train(3)
names = [event.name for event in profile.events() if event.name.startswith("gradwire:")]
json.dump(names, open({str(tmp_path)!r} + f"/names-{{dist.get_rank()}}", "w"))
"""
    hook = "ddp.register_comm_hook(None, lambda state, bucket: own(bucket))\ndef own(bucket):\n" \
           "    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0])"
    run(tmp_path, training("2", hook, rest=rest))
    for rank in range(RANKS):
        names = json.loads((tmp_path / f"names-{rank}").read_text())
        count = {name: names.count(name) for name in names}
        assert count["gradwire:wait for buckets"] == 3
        assert count["gradwire:bucket 0"] == count["gradwire:bucket 1"] == 3
        (own,) = (name for name in count if name.startswith("gradwire:hook "))
        assert count[own] == count["gradwire:bucket 0"] + count["gradwire:bucket 1"]
        assert count["gradwire:all_reduce"] == count[own], "a call from Python is one range"
