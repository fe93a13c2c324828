# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs of fault_training under gradwire-run, on one host or on two hosts in network namespaces."""
from __future__ import annotations

import dataclasses
import pathlib
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "python" / "tests"))
from two_hosts import ADDRESSES, TwoHosts, why_not  # noqa: E402,F401

PORT = 29400


@dataclasses.dataclass
class Programs:
    """What is tested, in a build folder."""

    folder: pathlib.Path

    @property
    def run(self) -> str:
        return str(self.folder / "bin/gradwire-run")

    @property
    def diagnose(self) -> str:
        return str(self.folder / "bin/gradwire-diagnose")

    def test(self, name: str) -> str:
        return str(self.folder / "bin/tests" / name)


@dataclasses.dataclass
class Line:
    time: float  # of the monotonic clock, in seconds
    text: str


class Launcher:
    """A gradwire-run in the background. Its lines are kept with the times at which they came."""

    def __init__(self, command: list[str]) -> None:
        self._changed = threading.Condition()
        self.out: list[Line] = []
        self.err: list[Line] = []
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, errors="replace")
        self._readers = [threading.Thread(target=self._read, args=pair) for pair in
                         ((self.process.stdout, self.out), (self.process.stderr, self.err))]
        for reader in self._readers:
            reader.start()

    def _read(self, stream, lines: list[Line]) -> None:
        for text in stream:
            with self._changed:
                lines.append(Line(time.monotonic(), text.rstrip("\n")))
                self._changed.notify_all()

    def wait_for(self, part: str, seconds: float, in_out: bool = False, since: float = 0.0) -> Line | None:
        """The first line since then (of time.monotonic()) with this part; nothing when the job ends, or the time passes,
        without one."""
        end = time.monotonic() + seconds
        lines = self.out if in_out else self.err
        seen = 0
        with self._changed:
            while True:
                while seen < len(lines):
                    if part in lines[seen].text and lines[seen].time >= since:
                        return lines[seen]
                    seen += 1
                if not any(reader.is_alive() for reader in self._readers) or time.monotonic() > end:
                    return None
                self._changed.wait(0.05)

    def finish(self, seconds: float) -> int:
        """The exit code of the job. A job that takes longer is told to end, and then is killed."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for reader in self._readers:
            reader.join()
        self.process.stdout.close()
        self.process.stderr.close()
        return self.process.returncode

    def text(self) -> str:
        return "\n".join(line.text for line in self.err)


class Hosts:
    """Two hosts whose launchers share a secret."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.network = TwoHosts()
        self.secret = folder / "secret"
        self.secret.write_text("the hosts of these tests\n")
        self.secret.chmod(0o600)

    def node(self, programs: Programs, node: int, options: list[str], program: list[str]) -> Launcher:
        """The launcher of one of the two hosts of a job."""
        return self.start(node, [programs.run, "--nnodes", "2", "--node-rank", str(node), "--rendezvous",
                                 self.address(), "--secret-file", str(self.secret), "--env",
                                 "GLOO_SOCKET_IFNAME=eth0",  # the names of these hosts do not resolve
                                 *options, *program])

    def start(self, host: int, command: list[str]) -> Launcher:
        return Launcher([*self.network.enter(host), *command])

    def address(self) -> str:
        return f"{ADDRESSES[0]}:{PORT}"

    def close(self) -> None:
        self.network.close()


def alarms(launchers: list[Launcher]) -> list[str]:
    """What the launchers said of a cause or of a standstill."""
    signs = ("stands still", "is the cause", "are the cause", "the cause is", "disagree", "do not show the cause")
    return [line.text for launcher in launchers for line in launcher.err if any(sign in line.text for sign in signs)]
