// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How many descriptors a launcher may have. A launcher that serves the store of a large job needs several for each
// rank, and the usual soft limit of 1024 would keep ranks out. Ranks have the limit that the launcher was started with.
#pragma once

namespace gradwire::launch {

// Raises the soft limit of this process to the hard limit, or to 8192 where the hard limit is above that. Never lowers
// the soft limit. Changes nothing where the kernel refuses. Call it once, before other threads start.
void raise_descriptor_limit() noexcept;

// Undoes raise_descriptor_limit(). For a child between fork() and exec: async-signal-safe.
void restore_descriptor_limit() noexcept;

}  // namespace gradwire::launch
