// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A group of ours as a backend of libtorch's c10d, on which PyTorch's own DDP, FSDP and functional collectives run.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "gradwire/process_group/process_group.h"

namespace gradwire {

// `group` as a c10d::Backend called "gradwire". Every call goes to the same call of `group`, which it keeps alive, so
// order, deadlines and errors are those of `group`; errors come out as the types of gradwire/base/error.h, which are
// std::runtime_error to c10d. Thread-safe. Throws InvalidArgument when `group` is null.
//
// What a c10d user sees:
//   - work: waits, futures, operation types and sequence numbers; a profiler sees "gradwire:all_reduce" and the like,
//     with the shapes of the inputs. A call with asyncOp false runs on the calling thread. A future holds the list of
//     output tensors; that of all_gather and gather of several inputs, a list of lists.
//   - reductions: all of ours (AVG and PREMUL_SUM too), on all of our dtypes. all_reduce takes sparse COO tensors too,
//     with SUM alone; that call returns when it has ended.
//   - lists: each tensor of a list is a message of its own (engines for several devices a rank reduce over a list).
//   - split and merge make groups on the engine of `group`, in the store they are given. Needs a group of one of our
//     backends (make_process_group's names); UnsupportedError otherwise.
//   - abort() ends the group here and tells the other ranks; shutdown() finishes what is under way.
// Where `group` came from from_c10d(), this is a backend over it all the same.
c10::intrusive_ptr<c10d::Backend> to_c10d(std::shared_ptr<ProcessGroup> group);

// The group under a backend that to_c10d() or make_c10d_backend() made; null for any other.
std::shared_ptr<ProcessGroup> group_under(const c10::intrusive_ptr<c10d::Backend>& backend);

// What torch.distributed asks a plug-in for: a backend for rank `rank` of `size`, whose ranks meet in `store` (its keys
// are this group's alone, as torch's are). Blocks until all ranks are there; call it without Python's lock. `engine` is
// a name that make_process_group() takes. The group is shut down, work under way finished, when the last reference to
// the backend goes. Throws as make_process_group() does.
c10::intrusive_ptr<c10d::Backend> make_c10d_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    Milliseconds timeout = kDefaultTimeout,
                                                    const std::string& engine = "auto");

}  // namespace gradwire
