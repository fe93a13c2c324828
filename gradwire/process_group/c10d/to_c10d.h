// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A gradwire group as a backend of libtorch's c10d, for PyTorch's own DDP, FSDP and functional collectives.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "gradwire/process_group/process_group.h"

namespace gradwire {

// Returns `group` as a c10d::Backend called "gradwire", which shares ownership of the group. Each call becomes the same
// call on `group`, with the group's order, deadlines and errors. Errors keep the types of gradwire/base/error.h, which
// are std::runtime_error for c10d. Thread-safe. Throws InvalidArgument when `group` is null.
//
// For a user of c10d:
//   - Work: waits, futures, operation types and sequence numbers work. A profiler shows "gradwire:all_reduce" and the
//     like, with the shapes of the inputs. A call with asyncOp false has ended when it returns. A future holds the list
//     of output tensors; that of all_gather and gather of several inputs holds a list of lists.
//   - Reductions: all reductions and dtypes of gradwire, AVG and PREMUL_SUM included. all_reduce also takes sparse COO
//     tensors, with SUM only; that call has ended when it returns.
//   - Several tensors in one call: broadcast, allreduce (also of sparse tensors) and allgather take them for the parts
//     that this rank has of one message, as engines for several devices a rank do. In other calls each tensor of a list
//     is a message of its own.
//   - split and merge make groups with the backend of `group`, in the store that they are given. They throw
//     UnsupportedError unless `group` has one of make_process_group()'s backends.
//   - abort() ends the group on this rank and tells the other ranks; shutdown() waits for the calls under way.
// For a group that came from from_c10d(), too, the result is a new backend over the group.
c10::intrusive_ptr<c10d::Backend> to_c10d(std::shared_ptr<ProcessGroup> group);

// Returns the group under a backend that to_c10d() or make_c10d_backend() made; null for any other backend.
std::shared_ptr<ProcessGroup> group_under(const c10::intrusive_ptr<c10d::Backend>& backend);

// Makes a group and returns it as a c10d::Backend: the function that torch.distributed asks a plug-in for. `rank` of
// `size` ranks meet in `store`, whose keys are this group's alone, as those of torch's stores are. `engine` is a name
// that make_process_group() accepts. Blocks until all ranks have called it; the caller must not hold Python's lock. The
// last reference to the backend shuts the group down, which waits for the calls under way. Throws as
// make_process_group().
c10::intrusive_ptr<c10d::Backend> make_c10d_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    Milliseconds timeout = kDefaultTimeout,
                                                    const std::string& engine = "auto");

}  // namespace gradwire
