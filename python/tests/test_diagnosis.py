# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What the flight recorder keeps of a Python program: the lines of the program, not those of gradwire or torch."""
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

GUARD = 120
BUILD = pathlib.Path(os.environ.get("GRADWIRE_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build"))

PROGRAM = """
import sys
import torch
import gradwire.distributed as dist


def average_loss(loss):
    dist.all_reduce(loss)  # line 8


def average_gradients(gradients):
    dist.all_reduce(gradients)


dist.init_process_group("shm")
for step in range(10):
    average_loss(torch.ones(1))
    average_gradients(torch.ones(100))
    if dist.get_rank() == 1 and step == 5:
        raise ValueError("no such sample")
"""


def test_the_diagnosis_names_the_rank_and_the_line(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    launcher = BUILD / "bin" / "gradwire-run"
    records = tmp_path / "records"
    command = [str(launcher), "-n", "2", "--flight-dir", str(records), sys.executable, str(program)]
    job = subprocess.run(command, capture_output=True, text=True, timeout=GUARD, check=False)
    assert job.returncode == 1
    assert "rank 1 is the cause: ended with an error" in job.stderr, job.stderr
    report = [line for line in job.stderr.splitlines() if not line.startswith("[rank ")]
    assert sum("ValueError: no such sample" in line for line in report) == 1, job.stderr  # whichever rank died first
    assert "the others waited in all_reduce(1 f32)" in job.stderr, job.stderr
    assert "at train.py:8 (average_loss), group default" in job.stderr, job.stderr
    calls = [json.loads(line) for line in (records / "rank-0.jsonl").read_text().splitlines()]
    lines = [call["line"] for call in calls if call["type"] == "call"]
    assert lines[0] == "train.py:8 (average_loss)", "the first call of a process has its line too"
    assert all(line.startswith("train.py:") for line in lines), lines


def test_ranks_of_an_earlier_run_with_the_same_job_id_are_left_out(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    records = tmp_path / "records"
    for ranks in (3, 2):
        command = [str(BUILD / "bin" / "gradwire-run"), "-n", str(ranks), "--job-id", "night", "--flight-dir", str(records),
                   sys.executable, str(program)]  # fmt: skip
        job = subprocess.run(command, capture_output=True, text=True, timeout=GUARD, check=False)
        assert job.returncode == 1
        again = tmp_path / f"of-{ranks}"
        diagnose = [str(BUILD / "bin" / "gradwire-diagnose"), str(records), "--write", str(again)]
        assert subprocess.run(diagnose, capture_output=True, timeout=GUARD, check=False).returncode == 1
        assert len(list(again.iterdir())) == ranks


THROUGH_TORCH = """
import os
import torch
import torch.distributed as dist


def average(tensor):
    dist.all_reduce(tensor)  # line 8


os.environ.setdefault("GRADWIRE_FLIGHT_RECORDER", f"rank-{os.environ['RANK']}.flight")
dist.init_process_group("gradwire")
for step in range(10):
    if not (dist.get_rank() == 1 and step == 5):
        average(torch.ones(4))
    dist.all_reduce(torch.ones(7))  # line 16
"""


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("launcher", ["gradwire-run", "torchrun"])
def test_calls_through_torch_have_the_line_of_the_program(tmp_path, launcher, ranks):
    program = tmp_path / "train.py"
    program.write_text(THROUGH_TORCH)
    command = [str(BUILD / "bin" / "gradwire-run"), "-n", str(ranks), sys.executable, str(program)]
    if launcher == "torchrun":
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", str(program)]
    job = subprocess.run(command, capture_output=True, text=True, timeout=GUARD, check=False, cwd=tmp_path)
    assert job.returncode != 0
    said = job.stderr
    if launcher == "torchrun":
        said = subprocess.run([str(BUILD / "bin" / "gradwire-diagnose"), str(tmp_path)], capture_output=True, text=True, timeout=GUARD,
                              check=False).stdout
    assert "rank 1 is the cause: skipped a call" in said, said + job.stderr
    assert "the others called all_reduce(4 f32) (call 11 of its group) at train.py:8 (average), group 0" in said, said
    assert "the cause called all_reduce(7 f32) (call 11 of its group) at train.py:16 (<module>)" in said, said


TRAINING = """
import torch
import gradwire.distributed as dist
from gradwire.nn.parallel import DistributedDataParallel


def train(ddp, step):
    loss = ddp(torch.ones(2, 4)).sum()  # line 8
    if dist.get_rank() == 1 and step == 5:
        raise ValueError("no such sample")
    loss.backward()


dist.init_process_group("shm")
ddp = DistributedDataParallel(torch.nn.Linear(4, 4))
for step in range(10):
    train(ddp, step)
"""


# Lines with "# calls" make calls of groups, by parts of the package that are in C++.
PARTS = """
import sys
import torch
from torch import nn
import gradwire
import gradwire.distributed as dist
from gradwire.distributed.algorithms.join import Join
from gradwire.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from gradwire.distributed.nn import functional
from gradwire.distributed.optim import DilocoAverager, GossipAverager, ZeroRedundancyOptimizer
from gradwire.nn import SyncBatchNorm
from gradwire.nn.parallel import DistributedDataParallel

dist.init_process_group("shm")
other = dist.new_group([0, 1])  # calls
net = nn.Linear(4, 4)
net.weight.grad, net.bias.grad = torch.ones(4, 4), torch.ones(4)
ddp = DistributedDataParallel(nn.Linear(4, 4), process_group=other)  # calls
optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.1)  # calls
optimizer.step()  # calls
PeriodicModelAverager(1, 0).average_parameters(net.parameters())  # calls
diloco = DilocoAverager(net.parameters(), inner_steps=1)  # calls
diloco.average_parameters(net.parameters())  # calls
gossip = GossipAverager(net.parameters(), inner_steps=1)  # calls
gradwire.hooks.reduce_gradients(list(net.named_parameters()))  # calls
layer = SyncBatchNorm(4)
output = layer(torch.ones(2, 4, requires_grad=True))  # calls
output.sum().backward()  # calls
output = functional.all_reduce(torch.ones(3, requires_grad=True))  # calls
output.sum().backward()  # calls
dist.all_reduce(torch.eye(3).to_sparse())  # calls
with Join([ddp]):  # calls
    ddp(torch.ones(2, 4)).sum().backward()  # calls
sys.exit(1)
"""


def test_calls_that_parts_in_cpp_make_have_the_line_of_the_program(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(PARTS)
    command = [str(BUILD / "bin" / "gradwire-run"), "-n", "2", "--flight-dir", str(tmp_path), sys.executable, str(program)]
    job = subprocess.run(command, capture_output=True, text=True, timeout=GUARD, check=False)
    assert job.returncode == 1 and "Traceback" not in job.stderr, job.stderr
    records = [json.loads(line) for line in (tmp_path / "rank-0.jsonl").read_text().splitlines()]
    calls = [record for record in records if record["type"] == "call"]
    elsewhere = [(call["operation"], call["line"], call["function"]) for call in calls if not call["line"].startswith("train.py:")]
    assert not elsewhere
    expected = {f"train.py:{number} (<module>)" for number, line in enumerate(PARTS.splitlines(), 1) if line.endswith("# calls")}
    assert expected <= {call["line"] for call in calls}


CIRCLE = """
import torch
import gradwire.distributed as dist

dist.init_process_group("shm")
groups = [dist.new_group([0, 1]), dist.new_group([1, 2]), dist.new_group([0, 2])]
first, second = {0: (0, 2), 1: (1, 0), 2: (2, 1)}[dist.get_rank()]
dist.all_reduce(torch.ones(2), group=groups[first])
dist.all_reduce(torch.ones(2), group=groups[second])
"""


def test_a_circle_of_groups_of_which_no_rank_is_in_all_is_a_deadlock(tmp_path):
    program = tmp_path / "circle.py"
    program.write_text(CIRCLE)
    command = [str(BUILD / "bin" / "gradwire-run"), "-n", "3", "--stall", "1", "--timeout", str(GUARD), sys.executable, str(program)]
    wanted = [rf"rank {rank}: is in all_reduce.* at circle.py:8 .*, group group{rank}" for rank in range(3)]
    said = ""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as job:
        for line in job.stderr:  # the job stands still until it is ended
            said += line
            if all(re.search(each, said) for each in wanted):
                break
        job.terminate()
        said += job.communicate()[1]
    assert "ranks 0, 1, 2 disagree: deadlock" in said, said
    for each in wanted:
        assert re.search(each, said), said


def test_calls_of_ddp_have_the_line_of_the_forward_pass(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(TRAINING)
    command = [str(BUILD / "bin" / "gradwire-run"), "-n", "2", sys.executable, str(program)]
    job = subprocess.run(command, capture_output=True, text=True, timeout=GUARD, check=False)
    assert job.returncode == 1
    assert "rank 1 is the cause: ended with an error" in job.stderr, job.stderr
    assert "the others waited in all_reduce(20 f32, iteration 5 bucket 0 stage 0)" in job.stderr, job.stderr
    assert "at train.py:8 (train), group default.dup" in job.stderr, job.stderr


# Rank 0 begins a call of one group and goes on; rank 1 waits for a call of the other group, to which rank 0 does not come.
MEANWHILE = """
import time
import torch
import gradwire.distributed as dist

dist.init_process_group("shm")
other = dist.new_group([0, 1])
dist.barrier()
dist.barrier(group=other)
if dist.get_rank() == 0:
    work = dist.all_reduce(torch.ones(100), async_op=True)  # line 11
    ELSEWHERE
    work.wait()
else:
    work = dist.all_reduce(torch.ones(200), group=other, async_op=True)  # line 15
    work.wait()  # line 16
"""


@pytest.mark.parametrize("elsewhere, fault", [("while True: sum(range(1000))", "slow"), ("time.sleep(1000)", "blocked")])
def test_a_rank_that_does_something_else_while_its_call_is_under_way_is_named(tmp_path, elsewhere, fault):
    program = tmp_path / "train.py"
    program.write_text(MEANWHILE.replace("ELSEWHERE", elsewhere))
    launcher = BUILD / "bin" / "gradwire-run"
    for limit in ("8", "24", "72"):  # on a slow machine the ranks may not have begun
        command = [str(launcher), "-n", "2", "--timeout", limit, sys.executable, str(program)]
        job = subprocess.run(command, capture_output=True, text=True, timeout=GUARD, check=False)
        assert job.returncode != 0
        if "is the cause" in job.stderr:
            break
    assert f"rank 0 is the cause: {fault}" in job.stderr, job.stderr
    assert "the others waited in all_reduce(200 f32)" in job.stderr, job.stderr
    assert "rank 1: " in job.stderr and "at train.py:15 (<module>)" in job.stderr, job.stderr
    assert "waits for it at train.py:16 (<module>)" in job.stderr, job.stderr
    assert "no thread wait" in job.stderr, job.stderr
