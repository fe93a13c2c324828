// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which process UCX's own thread serves. One thread of UCX serves all of its contexts. A child that is forked while
// there are some inherits what UCX knows of that thread, but not the thread, and UCX does nothing more there.
#pragma once

namespace gradwire::ucx {

// A context was made, or has ended, in this process. Thread-safe.
void note_context();
void forget_context() noexcept;

// Whether this process is a child, forked while its parent had contexts. Thread-safe.
bool has_inherited_contexts() noexcept;

}  // namespace gradwire::ucx
