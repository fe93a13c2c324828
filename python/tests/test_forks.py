# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""A program in a fork (forks.py) finds what it finds in a process that is started anew, and ends as it does there."""
import json
import pathlib
import signal

import pytest

GUARD = 120

FINDS = """
import atexit, json, os, signal, sys, threading
atexit.register(lambda: print("at the end", __name__, flush=True))
import torch
import gradwire.distributed as dist

def here():
    pass

found = {
    "arguments": sys.argv[1:],
    "path": [os.path.relpath(entry) for entry in sys.path if entry.endswith(("python", "packages")) or entry == os.path.dirname(__file__)],
    "main": (sys.modules["__main__"].here is here, __name__, __file__ == sys.argv[0], __spec__, __package__),
    "environment": {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "OMP_NUM_THREADS", "PYTEST_CURRENT_TEST", "NEW")},
    "folder": os.getcwd(),
    "descriptors": len([fd for fd in os.listdir("/proc/self/fd")]),
    "output": [(stream.fileno(), stream.line_buffering, stream.encoding, stream.errors) for stream in (sys.stdout, sys.stderr)],
    "input": sys.stdin.read(),
    "signals": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE)],
    "threads": (threading.active_count(), threading.current_thread() is threading.main_thread(), torch.get_num_threads()),
    "groups": (dist.is_initialized(), torch.distributed.is_initialized()),
    "of tests": sorted(name for name in sys.modules if "pytest" in name),
}
print(json.dumps(found))
print("to stderr", file=sys.stderr)
"""

ENDS = {
    "falls off its end": ("", 0),
    "exits": ("sys.exit(3)", 3),
    "exits with a word": ("sys.exit('a word')", 1),
    "raises": ("def fails(): raise ValueError('no such sample')\nfails()", 1),
    "exits at once": ("print('lost'); os._exit(4)", 4),
    "is interrupted": ("signal.raise_signal(signal.SIGINT)", -signal.SIGINT),
    "is killed": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    "is no program": ("import no_such_module", 1),
}


def outputs_of(run_script, source, *arguments):
    """What the program says in a fork, and in a process that is started anew; and with what status they end."""
    found = []
    for anew in (False, True):
        (process,) = run_script(source, 1, *arguments, anew=anew)
        output, _ = process.communicate(timeout=GUARD)
        found.append((output, process.returncode))
    return found


def test_a_fork_finds_what_a_new_process_finds(run_script, monkeypatch):
    monkeypatch.setenv("NEW", "ä\udc80")
    ended = outputs_of(run_script, FINDS, "one", "two words")
    for output, status in ended:
        assert status == 0 and output.count("at the end __main__") == 1 and "to stderr" in output, output
    forked, new = (json.loads(next(line for line in output.splitlines() if line.startswith("{"))) for output, _ in ended)
    for what, value in new.items():
        assert forked[what] == value, what


@pytest.mark.parametrize("way", ENDS)
def test_a_fork_ends_as_a_new_process_does(run_script, way):
    line, expected = ENDS[way]
    source = f"import atexit, os, signal, sys\natexit.register(print, 'at the end')\nprint('begins', flush=True)\n{line}\n"
    ended = outputs_of(run_script, source)
    for output, status in ended:
        assert status == expected, output
    runner = str(pathlib.Path(__file__).with_name("run_pytest.py"))
    forked, new = ([line for line in output.splitlines() if "exec(program" not in line and runner not in line] for output, _ in ended)
    assert [line for line in forked if "^^^" not in line] == [line for line in new if "^^^" not in line]


def test_forks_draw_different_numbers(run_script):
    source = "import random, torch\nprint(torch.rand(1).item())\nprint(random.random())"
    first, second = (process.communicate(timeout=GUARD)[0].split() for process in run_script(source, 2))
    assert len({*first, *second}) == 4


RECORDED = """
import os, pathlib, torch
import gradwire.distributed as dist

rank = int(os.environ["RANK"])
record = pathlib.Path(os.environ["MEET"] + f"-{rank}.flight")
os.environ["GRADWIRE_FLIGHT_RECORDER"] = str(record)
dist.init_process_group("shm", "file://" + os.environ["MEET"], rank=rank, world_size=2)
dist.all_reduce(torch.ones(rank + 1).sum())
assert os.getpid().to_bytes(8, "little") in record.read_bytes()
dist.destroy_process_group()
print("well")
"""


def test_forks_have_flight_records_of_their_own(run_script):
    for process in run_script(RECORDED, 2):
        output, _ = process.communicate(timeout=GUARD)
        assert output == "well\n" and process.returncode == 0, output


def test_signals_reach_a_fork_and_its_end_is_seen(run_script):
    (process,) = run_script("import time\nprint('ready', flush=True)\ntime.sleep(1000)", 1)
    assert process.stdout.readline() == "ready\n" and process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(GUARD) == -signal.SIGTERM == process.poll()
