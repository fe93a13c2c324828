# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Two hosts on one machine: network namespaces with a cable between them."""
from __future__ import annotations

import json
import os
import shutil
import subprocess

ADDRESSES = ("10.84.0.1", "10.84.0.2")


def why_not() -> str:
    """One sentence with the reason why this machine cannot make hosts; empty when it can."""
    for program in ("ip", "nsenter", "unshare"):
        if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
            return f"network namespaces need the program '{program}' (iproute2, util-linux)"
    probe = subprocess.run(["unshare", "--net", "--uts", "true"], capture_output=True, text=True, check=False)
    return f"no network namespaces may be made here: {probe.stderr.strip()}; run as root" if probe.returncode else ""


class TwoHosts:
    """The hosts "host-a" and "host-b", each with an interface eth0. The kernel removes them when close() has returned."""

    def __init__(self) -> None:
        self._holders: list[subprocess.Popen] = []
        try:
            for name in ("host-a", "host-b"):
                self._hold(name)
            a, b = (str(holder.pid) for holder in self._holders)
            # Made on the first host: the namespace of the test itself gets no interface.
            self._on(0, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", b)
            for host, pid in enumerate((a, b)):
                self._on(host, "ip", "link", "set", "lo", "up")
                self._on(host, "ip", "address", "add", f"{ADDRESSES[host]}/24", "dev", "eth0")
                self._on(host, "ip", "link", "set", "eth0", "up")
        except BaseException:
            self.close()
            raise

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
