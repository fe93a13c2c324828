# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Hosts on one machine: network namespaces with a cable between two of them, or with a switch between more."""
from __future__ import annotations

import json
import os
import shutil
import subprocess

ADDRESSES = ("10.84.0.1", "10.84.0.2")


def address_of(host: int) -> str:
    return f"10.84.0.{host + 1}"


def why_not() -> str:
    """One sentence with the reason why this machine cannot make hosts; empty when it can."""
    for program in ("ip", "nsenter", "unshare"):
        if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
            return f"network namespaces need the program '{program}' (iproute2, util-linux)"
    probe = subprocess.run(["unshare", "--net", "--uts", "true"], capture_output=True, text=True, check=False)
    return f"no network namespaces may be made here: {probe.stderr.strip()}; run as root" if probe.returncode else ""


class TwoHosts:
    """The hosts "host-a" and "host-b", each with an interface eth0. The kernel removes them when close() has returned."""

    names = ("host-a", "host-b")

    def __init__(self) -> None:
        self._holders: list[subprocess.Popen] = []
        try:
            for name in self.names:
                self._hold(name)
            self._connect()
            for host in range(len(self.names)):
                self._on(host, "ip", "link", "set", "lo", "up")
                self._on(host, "ip", "address", "add", f"{address_of(host)}/24", "dev", "eth0")
                self._on(host, "ip", "link", "set", "eth0", "up")
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        # Made on the first host: the namespace of the test itself gets no interface.
        self._on(0, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", self._pid(1))

    def _pid(self, number: int) -> str:
        return str(self._holders[number].pid)

    def enter(self, host: int) -> list[str]:
        """The first words of a command line that runs on the host."""
        return ["nsenter", "--net", "--uts", "--target", str(self._holders[host].pid), "--"]

    def sent_bytes(self, host: int) -> int:
        """What the host has sent on eth0 since its start, headers included."""
        shown = json.loads(self._on(host, "ip", "-s", "-j", "link", "show", "dev", "eth0"))
        return shown[0]["stats64"]["tx"]["bytes"]

    def cut(self) -> None:
        """From here on, what the hosts send to each other vanishes, as with a pulled cable. No connection is reset."""
        for host, other in ((0, 1), (1, 0)):  # the packets go to a link address that nobody has
            self._on(host, "ip", "neigh", "replace", ADDRESSES[other], "lladdr", "02:00:00:00:00:01", "dev", "eth0",
                     "nud", "permanent")

    def close(self) -> None:
        for holder in self._holders:
            holder.kill()
            holder.wait()
            holder.stdout.close()
        self._holders.clear()

    def _hold(self, name: str) -> None:
        # `ready` is written when the namespaces are there; the process ends when its parent closes its standard input.
        script = f"hostname {name} && echo ready && exec cat"
        holder = subprocess.Popen(["unshare", "--net", "--uts", "sh", "-c", script], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True)
        self._holders.append(holder)
        if holder.stdout.readline() != "ready\n":
            raise OSError(f"the machine refused the host {name}")

    def _on(self, host: int, *command: str) -> str:
        done = subprocess.run([*self.enter(host), *command], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout


class SwitchedHosts(TwoHosts):
    """`count` hosts, "host-a" and so on, each with an interface eth0 that a switch connects with the others."""

    def __init__(self, count: int) -> None:
        self.names = tuple(f"host-{chr(ord('a') + host)}" for host in range(count))
        super().__init__()

    def _connect(self) -> None:
        self._hold("switch")
        switch = len(self.names)
        self._on(switch, "ip", "link", "add", "sw", "type", "bridge")
        self._on(switch, "ip", "link", "set", "sw", "up")
        for host in range(switch):
            self._on(switch, "ip", "link", "add", f"port{host}", "type", "veth", "peer", "name", "eth0", "netns",
                     self._pid(host))
            self._on(switch, "ip", "link", "set", f"port{host}", "master", "sw", "up")
