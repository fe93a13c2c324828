# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Starts programs as forks of one process that has imported torch and gradwire, because each import takes a second or more.

run_pytest.py forks that process, the maker, before it imports pytest. The maker has one thread, no group, and nothing of
pytest. Each fork of the maker runs one program, with an environment, a folder, arguments, an output, a `__main__` and an
exit status of its own, and ends as any interpreter does.

A test that depends on one of these differences starts its programs anew (run_script(..., anew=True)):

- All forks have one hash seed, one state of numpy.random, and from the start the modules that the maker has imported.
- Variables that Python, the C library or libtorch read when a process starts have no effect. PYTHONPATH and
  OMP_NUM_THREADS have theirs.
- The parent of a fork is the maker, and its /proc/self/cmdline is the maker's.
- The traceback of an error that nobody catches begins with a line of run_pytest.py.
"""
from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from typing import Any

# On PYTHONPATH, this folder makes the imports of processes cheaper that are no forks.
STARTUP = pathlib.Path(__file__).with_name("startup")
_LONGEST = 1 << 17  # bytes of a message, which are an environment for the most part
_maker: _Maker | None = None


def make_maker() -> types.CodeType | None:
    """Returns None in the caller, which has a maker then, and in each fork the code that is to be run in `__main__`."""
    global _maker  # noqa: PLW0603
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid != 0:
        theirs.close()
        _maker = _Maker(pid, ours)
        return None
    ours.close()
    return _serve(theirs)


def end_maker() -> None:
    """Ends the forks that nobody has waited for, too."""
    assert _maker is not None
    _maker.end()


def start(command: list[str], environment: dict[str, str], anew: bool = False) -> Fork | subprocess.Popen[str]:
    """Starts [sys.executable, script, *arguments], with its output and its errors in one pipe: a fork where there is a maker."""
    if _maker is None or anew:
        return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert command[0] == sys.executable
    return Fork(_maker, command[1:], environment)


def import_first(module: str) -> None:
    """The forks from here on have imported the module: for one that takes long, and that the programs of a test import."""
    if _maker is not None:
        _maker.ask("import", module)


class _Maker:
    """The maker, as the process of pytest sees it."""

    def __init__(self, pid: int, messages: socket.socket) -> None:
        self._pid = pid
        self._messages = messages
        self._lock = threading.Lock()

    def ask(self, *words: Any, fds: tuple[int, ...] = ()) -> Any:
        with self._lock:
            socket.send_fds(self._messages, [json.dumps(words).encode()], fds)
            answer = self._messages.recv(_LONGEST)
        assert answer, "the process that forks programs has ended"
        return json.loads(answer)

    def end(self) -> None:
        # A close alone would not do: forks of the process of pytest may have the socket, too.
        self._messages.shutdown(socket.SHUT_RDWR)
        os.waitpid(self._pid, 0)
        self._messages.close()


class Fork:
    """A program in a fork, with the methods of subprocess.Popen that tests use."""

    def __init__(self, maker: _Maker, args: list[str], environment: dict[str, str]) -> None:
        self.args = args
        self.returncode: int | None = None
        self._maker = maker
        self._reader: threading.Thread | None = None
        self._read: list[str] = []
        read, write = os.pipe()
        self.stdout = open(read)  # noqa: SIM115
        try:
            self.pid = maker.ask("fork", args, environment, os.getcwd(), fds=(0, write))
        finally:
            os.close(write)
        self._pidfd = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            ended = select.poll()
            ended.register(self._pidfd, select.POLLIN)
            if not ended.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = self._maker.ask("reap", self.pid)
            os.close(self._pidfd)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        begun = time.monotonic()
        if self._reader is None:
            self._reader = threading.Thread(target=lambda: self._read.append(self.stdout.read()), daemon=True)
            self._reader.start()
        self._reader.join(timeout)
        if self._reader.is_alive():
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.stdout.close()
        self.wait(None if timeout is None else max(0, begun + timeout - time.monotonic()))
        return self._read[0], None

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _serve(messages: socket.socket) -> types.CodeType:
    # Ctrl-C in a terminal is for pytest, which ends the maker.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # As subprocess.Popen does: those that this process was started with are not for the programs.
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the descriptor of the list has gone
            if fd > 2 and os.get_inheritable(fd):
                os.close(fd)
    own = {os.path.abspath(sys.path[0]), *_entries(os.environ.get("PYTHONPATH", ""))}
    path = [entry for entry in sys.path if entry not in own]
    running = set()
    while True:
        gc.freeze()
        text, fds, _, _ = socket.recv_fds(messages, _LONGEST, 2)
        if not text:
            break
        verb, *words = json.loads(text)
        answer = None
        if verb == "import":
            importlib.import_module(*words)
        elif verb == "reap":
            answer = os.waitstatus_to_exitcode(os.waitpid(*words, 0)[1])
            running.discard(*words)
        else:
            assert len(os.listdir("/proc/self/task")) == 1, "a thread would be missing in the fork"
            answer = os.fork()
            if answer == 0:
                messages.close()
                return _begin(*words, *fds, path)
            running.add(answer)
            for fd in fds:
                os.close(fd)
        messages.send(json.dumps(answer).encode())
    for pid in running:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os._exit(0)


def _entries(path: str) -> list[str]:
    return [os.path.abspath(entry) for entry in path.split(os.pathsep)] if path else []


def _begin(argv: list[str], environment: dict[str, str], folder: str, stdin: int, output: int, path: list[str]) -> types.CodeType:
    """Makes this fork what a process is in which Python has read the program, and is about to run it."""
    os.dup2(stdin, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(stdin)
    os.close(output)
    sys.stdout.reconfigure(line_buffering=False)  # type: ignore[union-attr]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    program = os.path.abspath(argv[0])
    sys.argv[:] = argv
    sys.path[:] = dict.fromkeys([os.path.dirname(program), *_entries(environment.get("PYTHONPATH", "")), *path])
    import torch  # noqa: PLC0415

    torch.default_generator.seed()
    if "OMP_NUM_THREADS" in environment:
        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    main = types.ModuleType("__main__")
    main.__file__ = program
    sys.modules["__main__"] = main
    with open(program, "rb") as file:
        return compile(file.read(), program, "exec", dont_inherit=True)
