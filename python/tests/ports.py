# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""TCP ports for servers that a test starts."""
import errno
import pathlib
import random
import socket


def free_port() -> int:
    """A free port that the kernel gives to no socket by itself, so no test beside this one takes the port in between."""
    first = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", random.randrange(10000, first) if first > 10000 else 0))
                return probe.getsockname()[1]
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
