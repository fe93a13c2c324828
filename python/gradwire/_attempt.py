# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Where ranks that a launcher of PyTorch's may start again meet, in a store that outlives them."""
from __future__ import annotations

import os
import time
import uuid
from datetime import timedelta
from typing import Any

import torch.distributed

__all__ = ["agree_on_attempt"]


def agree_on_attempt(store: Any, rank: int, size: int, timeout: timedelta) -> str:
    """A word for this start of the ranks: the same on all of them, and another one after each start.

    On one host, that is TORCHELASTIC_RESTART_COUNT. Agents of several hosts count differently: an agent does not count
    a restart whose reason was on another host, and none of them counts one because a host came. There, rank 0 makes the
    word. Each other rank asks for it with a word of its own, as the store may hold answers to ranks of an earlier
    start, and confirms that it has read the answer.

    store: torch.distributed's, for this group alone but for earlier starts. Raises TimeoutError.
    """
    several_agents = "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("GROUP_WORLD_SIZE", "1") != "1"
    if not several_agents or size == 1:
        return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    word = uuid.uuid4().hex
    if rank == 0:
        _answer(store, word, set(range(1, size)), timeout)
        return word
    store.set(f"asks/{rank}", word)
    try:
        store.wait([f"answer/{word}"], timeout)
    except torch.distributed.DistStoreError as error:
        raise TimeoutError(
            f"init_process_group: rank {rank} waited {timeout} for rank 0 of the group, which did not answer."
        ) from error
    agreed = bytes(store.get(f"answer/{word}")).decode()
    store.set(f"confirms/{agreed}/{rank}", b"1")
    return agreed


def _answer(store: Any, word: str, missing: set[int], timeout: timedelta) -> None:
    """Answers the ranks until each has confirmed that it has read the word. A rank of an earlier start never does."""
    answered: set[str] = set()
    deadline = time.monotonic() + timeout.total_seconds()
    pause = 0.001
    while True:
        missing = {rank for rank in missing if not store.check([f"confirms/{word}/{rank}"])}
        if not missing:
            return
        for rank in missing:
            if not store.check([f"asks/{rank}"]):
                continue
            asked = bytes(store.get(f"asks/{rank}")).decode()
            if asked not in answered:
                store.set(f"answer/{asked}", word)
                answered.add(asked)
        if time.monotonic() > deadline:
            ranks = ", ".join(str(rank) for rank in sorted(missing))
            raise TimeoutError(
                f"init_process_group: rank 0 waited {timeout} for ranks of the group that did not come: {ranks}."
            )
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
