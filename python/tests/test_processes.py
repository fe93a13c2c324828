# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What needs processes: the default group, Ctrl-C, the end of the interpreter, forks."""
import signal
import subprocess
import time

import pytest

import gradwire.distributed as dist

# Far beyond what anything here takes, also on a machine that does much else.
GUARD = 120

LIFE = """
import os, sys, torch
import gradwire, gradwire.distributed as dist
from gradwire.nn.parallel import DistributedDataParallel

assert dist.is_available() and not dist.is_initialized() and dist.group.WORLD is None
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
for generation in range(5):
    dist.init_process_group("shm", "file://" + os.environ["MEET"], rank=rank, world_size=size)
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (rank, size, "shm")
    tensor = torch.ones(1000) * (rank + 1)
    dist.all_reduce(tensor)
    assert tensor[0] == size * (size + 1) / 2
    alone = dist.new_group([1])
    assert dist.get_rank(alone) == (0 if rank == 1 else -1)
    if rank == 1:
        assert dist.get_process_group_ranks(alone) == [1] and dist.get_global_rank(alone, 0) == 1
    assert dist.all_reduce(tensor, group=alone) is None
    mine = dist.split_group(split_ranks=[[1, 0]])
    assert dist.get_process_group_ranks(mine) == [0, 1]
    dist.destroy_process_group()
    assert not dist.is_initialized() and dist.get_pg_count() == 0

dist.init_process_group("shm", "file://" + os.environ["MEET"], rank=rank, world_size=size)
child = os.fork()
if child == 0:
    code = 1
    try:
        # As a worker of a DataLoader asks which part of the data it has.
        assert dist.is_initialized() and (dist.get_rank(), dist.get_world_size()) == (rank, size)
        dist.all_reduce(torch.ones(1))
    except dist.DistError as error:
        assert f"forked child of rank {rank}" in str(error)
        dist.destroy_process_group(alone)
        assert dist.is_initialized()
        # It forgets its parent's group, or does not; it makes one of its own either way.
        if rank == 0:
            dist.destroy_process_group()
            assert not dist.is_initialized()
        dist.init_process_group("threads", store=dist.HashStore(), rank=0, world_size=1)
        assert dist.is_initialized() and dist.get_world_size() == 1
        dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()
        code = 0
    finally:
        os._exit(code)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
ddp = DistributedDataParallel(torch.nn.Linear(2, 2))
ddp(torch.ones(1, 2)).sum().backward()
dist.barrier()
print("well", flush=True)
# No destroy_process_group(), and work under way that nobody will ever match: the interpreter ends all the same.
if rank == 0:
    work = dist.all_reduce(torch.ones(1), async_op=True)
"""


def test_groups_come_and_go_children_are_refused_and_the_interpreter_ends(run_script):
    for process in run_script(LIFE, 2, anew=True):
        output, _ = process.communicate(timeout=GUARD)
        assert process.returncode == 0 and "well" in output, output


INTERRUPTED = """
import os, sys, time, torch
import gradwire.distributed as dist
from gradwire.nn.parallel import DistributedDataParallel

rank = int(os.environ["RANK"])
backend, where = sys.argv[1:3]
store = dist.FileStore(os.environ["MEET"], 2)
dist.init_process_group(backend, store=store, rank=rank, world_size=2)
ddp = DistributedDataParallel(torch.nn.Linear(2, 2))
loss = ddp(torch.ones(1, 2)).sum()
try:
    if rank == 1:
        print("ready", flush=True)
        try:
            time.sleep(1000)
        except KeyboardInterrupt:
            pass
        os._exit(0)
    print("ready", flush=True)
    if where == "collective":
        dist.barrier()
    elif where in ("queued", "queued dup", "queued end"):
        # Behind calls that never end. Their group is at its end after the interruption, so nothing waits here.
        ahead = dist.all_reduce(torch.ones(1), async_op=True), dist.irecv(torch.ones(1), 1)
        try:
            if where == "queued":
                dist.barrier()
            elif where == "queued dup":
                dist.group.WORLD.dup()
        finally:
            dist.destroy_process_group()
            print("destroyed", flush=True)
    elif where == "work":
        dist.all_reduce(torch.ones(1), async_op=True).wait()
    elif where == "message":
        dist.recv(torch.ones(1), 1)
    elif where == "store":
        store.get("nothing")
    elif where == "queue":
        store.queue_push("line", "an element is no value")
        store.get("line")
    elif where == "backward":
        loss.backward()
    print("went on", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


WAITS = {
    "shm": ("collective", "backward", "store", "queue", "queued", "queued dup", "queued end"),
    "gloo": ("collective", "backward", "queued", "queued end"),  # a dup waits for the other ranks inside Gloo
}


@pytest.mark.parametrize("backend", WAITS if dist.is_gloo_available() else ["shm"])
def test_ctrl_c_ends_every_kind_of_wait(run_script, backend):
    for where in WAITS[backend]:
        first, second = run_script(INTERRUPTED, 2, backend, where)
        for process in (first, second):
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(0.3)  # into the wait; earlier is a Ctrl-C too
        first.send_signal(signal.SIGINT)
        output, _ = first.communicate(timeout=GUARD)
        assert "interrupted" in output and first.returncode == 0, (where, output)
        assert ("destroyed" in output) == (where in ("queued", "queued dup")), (where, output)
        second.send_signal(signal.SIGINT)
        second.communicate(timeout=GUARD)


WAITS_AT_THE_END = """
import threading, time
import gradwire.distributed as dist

store = dist.HashStore()
for wait in (lambda: store.get("stop"), lambda: store.wait(["stop"]), lambda: store.queue_pop("empty")):
    for _ in range(8):
        threading.Thread(target=wait, daemon=True).start()
time.sleep(0.5)  # into the waits, which ask for the interpreter's lock now and then or do not
print("well", flush=True)
"""


def test_threads_that_wait_in_a_store_do_not_keep_the_interpreter_from_ending(run_script):
    [process] = run_script(WAITS_AT_THE_END, 1, anew=True)
    output, _ = process.communicate(timeout=GUARD)
    assert process.returncode == 0 and output == "well\n", output


def test_a_torch_of_another_version_is_refused_in_one_sentence(tmp_path):
    import sys

    source = "import torch; torch.__version__ = '1.2.3'; import gradwire"
    result = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=GUARD, check=False)
    assert result.returncode == 1 and "was built for torch" in result.stderr and "1.2.3" in result.stderr


SAMPLES = """
import os, torch
import gradwire.distributed as dist
from gradwire.utils.data import DistributedSampler

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
try:
    DistributedSampler(range(5))
except dist.InvalidArgument:
    pass
else:
    raise AssertionError("a sampler without a default group was not refused")
dist.init_process_group("shm", "file://" + os.environ["MEET"], rank=rank, world_size=size)
assert list(DistributedSampler(range(6), shuffle=False)) == list(range(rank, 6, size))
assert list(DistributedSampler(range(6), num_replicas=3, rank=2, shuffle=False)) == [2, 5]
everyones = [None] * size
dist.all_gather_object(everyones, list(DistributedSampler(range(6), seed=1)))
assert sorted(sum(everyones, [])) == list(range(6))
dist.destroy_process_group()
print("well", flush=True)
"""


def test_a_sampler_asks_the_default_group(run_script):
    for process in run_script(SAMPLES, 2):
        output, _ = process.communicate(timeout=GUARD)
        assert process.returncode == 0 and output == "well\n", output
