# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Memory, file descriptors and threads stay flat over many groups and hooks; Ctrl-C ends whatever a rank is in.

The numbers of rounds are in the environment: GRADWIRE_CYCLES (300; 10000 in the slow run) and GRADWIRE_INTERRUPTS (4;
50 there). Only the slow run holds a second for an interrupt: a busy machine must not fail the fast one.
"""
import os
import random
import signal
import time

CYCLES = int(os.environ.get("GRADWIRE_CYCLES", "300"))
INTERRUPTS = int(os.environ.get("GRADWIRE_INTERRUPTS", "4"))
SLOW = "GRADWIRE_INTERRUPTS" in os.environ
GUARD = 120 + CYCLES / 5

COMMON = """
import gc, json, os, random, sys, time, torch
import gradwire.distributed as dist
from gradwire.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

def begin(generation):
    dist.init_process_group("shm", f"file://{os.environ['MEET']}{generation}", rank=rank, world_size=size)

def end(generation):
    dist.destroy_process_group()
    # Everybody has come this far in its last generation, so nobody looks at the file before that.
    if rank == 0 and generation > 0:
        os.unlink(f"{os.environ['MEET']}{generation - 1}")
"""

CYCLE = COMMON + """
def use():
    gc.collect()
    with open("/proc/self/statm") as statm:
        pages = int(statm.read().split()[1])
    return {"kib": pages * os.sysconf("SC_PAGE_SIZE") // 1024, "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": len(os.listdir("/proc/self/task")), "mappings": sum(1 for _ in open("/proc/self/maps"))}

def step(ddp):
    ddp.zero_grad()
    ddp(torch.ones(2, 4)).sum().backward()

def hook_of(number):
    def hook(state, bucket):
        assert state == {"number": number}
        work = dist.all_reduce(bucket.buffer(), group=bucket.group, async_op=True)
        return work.get_future().then(lambda done: done.value()[0] / bucket.divisor)
    return {"number": number}, hook

def groups(first, last):
    for generation in range(first, last):
        begin(generation)
        half = dist.new_group([rank for rank in range(size)])
        ddp = DistributedDataParallel(torch.nn.Linear(4, 4), process_group=half)
        ddp.register_comm_hook(*hook_of(generation))
        step(ddp)
        del ddp, half
        end(generation)

def hooks(first, last):
    begin(f"-hooks{first}")
    ddp = DistributedDataParallel(torch.nn.Linear(4, 4))
    for number in range(first, last):
        ddp.replace_comm_hook(*hook_of(number))
        step(ddp)
    del ddp
    dist.destroy_process_group()

cycles = int(sys.argv[1])
# Allocators, caches and one-time tables are warm after that.
warm = max(cycles // 4, 60)
out = {}
for name, body in (("groups", groups), ("hooks", hooks)):
    body(0, warm)
    before = use()
    begun = time.monotonic()
    body(warm, warm + cycles)
    out[name] = {"before": before, "after": use(), "seconds": time.monotonic() - begun}
print("RESULT " + json.dumps(out), flush=True)
"""


def test_groups_and_hooks_leave_nothing_behind(run_script):
    import json

    for process in run_script(CYCLE, 2, str(CYCLES)):
        output, _ = process.communicate(timeout=GUARD)
        assert process.returncode == 0, output
        found = json.loads(output.split("RESULT ")[1])
        print(CYCLES, "cycles:", found)
        for name, use in found.items():
            before, after = use["before"], use["after"]
            for what in ("descriptors", "threads"):
                assert after[what] == before[what], (name, use)
            assert after["mappings"] - before["mappings"] <= 8, (name, use)
            assert after["kib"] - before["kib"] < 2 * 1024, (name, use)


INTERRUPTED = COMMON + """
def hook(state, bucket):
    dist.all_reduce(bucket.buffer(), group=bucket.group)
    return bucket.buffer().div_(bucket.divisor)

def work(dice, ddp, store):
    kind = dice.randrange(7)
    late = dice.randrange(size)
    # One rank comes late, so that the other waits for it.
    if dice.random() < 0.5 and rank == late:
        time.sleep(dice.random() / 5)
    else:
        dice.random()
    if kind == 0:
        dist.all_reduce(torch.ones(100_000))
    elif kind == 1:
        dist.all_reduce(torch.ones(10), async_op=True).wait()
    elif kind == 2:
        dist.barrier()
    elif kind == 3:
        dist.send(torch.ones(5), 1) if rank == 0 else dist.recv(torch.ones(5), 0)
    elif kind == 4:
        dist.all_gather_object([None] * size, {"rank": rank})
    elif kind == 5:
        ddp.zero_grad()
        ddp(torch.ones(8, 64)).sum().backward()
    else:
        try:
            store.wait(["nothing"], __import__("datetime").timedelta(milliseconds=200))
        except dist.TimeoutError:
            pass

for generation in range(int(sys.argv[1])):
    begin(generation)
    ddp = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]), bucket_cap_mb=0.01)
    ddp.register_comm_hook(None, hook)
    dice, store = random.Random(generation), dist.FileStore(f"{os.environ['MEET']}{generation}", size)
    try:
        print("ready", flush=True)
        while True:
            work(dice, ddp, store)
    except KeyboardInterrupt:
        print("interrupted", time.monotonic(), flush=True)
    except dist.DistError as error:
        print("ended", type(error).__name__, flush=True)
    del ddp
    end(generation)
print("well", flush=True)
"""


def test_ctrl_c_at_random_moments(run_script):
    dice = random.Random(5)
    processes = run_script(INTERRUPTED, 2, str(INTERRUPTS))
    latencies = []
    for number in range(INTERRUPTS):
        for process in processes:
            line = process.stdout.readline()
            assert line == "ready\n", line + process.stdout.read()
        chosen = dice.randrange(2)
        time.sleep(dice.random())
        sent = time.monotonic()
        processes[chosen].send_signal(signal.SIGINT)
        for rank, process in enumerate(processes):
            line = process.stdout.readline()
            assert line.startswith("interrupted" if rank == chosen else "ended"), (number, rank, line)
            if rank == chosen:
                latencies.append(float(line.split()[1]) - sent)
    for process in processes:
        # Not communicate(), which does not see what readline() has read beyond its line.
        assert process.stdout.read() == "well\n" and process.wait(GUARD) == 0
    print(f"{INTERRUPTS} interrupts: longest {max(latencies):.3f} s")
    assert max(latencies) < (1 if SLOW else GUARD)
