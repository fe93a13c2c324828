// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Any group of libtorch's c10d (Gloo, NCCL, a plug-in, one that Python made) as a group of ours.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "gradwire/process_group/process_group.h"
#include "gradwire/store/store.h"

namespace gradwire {

// Makes one more engine for `rank` of `size` ranks that meet in `store`, with its connections made when it returns.
using C10dFactory = std::function<c10::intrusive_ptr<c10d::Backend>(const c10::intrusive_ptr<c10d::Store>& store,
                                                                    int rank, int size, Milliseconds timeout)>;

struct FromC10dOptions {
  // Where duplicates and splits meet, monitored barriers report and an abort leaves its reason; its keys are this
  // group's alone. Null: a part of the c10d group's own store, where it has one.
  std::shared_ptr<Store> store;
  // How duplicates and splits are made. Empty: by the engine's own split(), where it supports that.
  C10dFactory factory;
  // The process of every rank (gradwire/base/process_identity.h), by which errors name ranks of this host that died.
  // Empty: the ranks tell each other through the store.
  std::vector<std::string> processes;
  // A backend that to_c10d() made gives the group underneath itself. False: a group over the backend all the same.
  bool unwrap = true;
};

// `backend` as a ProcessGroup, which shares its ownership. What it promises is what the engine promises
// (docs/backends.md): no common bits beyond the engine's, no detection of mismatched calls. Beyond that:
//   - every tensor of a list is a call of the engine's; strides and dtypes that the engine does not know are copied or
//     moved as bytes; AVG, PREMUL_SUM and reductions of bool are made of what Gloo has.
//   - time-outs of calls are passed on. Errors come out as ours, with rank, group and operation: TimeoutError,
//   PeerError
//     (which names those that aborted, or died on the host of a rank that saw it; of others the peers are not known),
//     UnsupportedError, InvalidArgument; after the first
//     TimeoutError or PeerError every later call fails with it. Exceptions of a group that Python made pass unchanged.
//   - dup() and split() need a store, and a factory or an engine that splits. Duplicates meet under a prefix of this
//     group's own and connect to all their peers before dup() returns. Where they cannot be made dup() is null, and DDP
//     runs without lanes.
//   - abort() fails what is under way here at once; on Gloo it closes the connections, so that the others fail too. So
//     it does after an error; letting go of the group with work under way does the same.
//   - writes to a connection that a peer has closed raise no SIGPIPE on threads that this group starts or is called on;
//     an engine that was made elsewhere keeps its own threads as they are.
//   - then-callbacks run on the engine's threads and must not wait for other calls of the group there; on a lane every
//     call has ended when it returns.
// Ranks wrap the c10d groups of one store in the same order. Throws InvalidArgument for null.
std::shared_ptr<ProcessGroup> from_c10d(c10::intrusive_ptr<c10d::Backend> backend, const FromC10dOptions& options = {});

// The same for a c10d::ProcessGroup: its one backend, or where it has several, or is made in Python, the group itself.
std::shared_ptr<ProcessGroup> from_c10d(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                        const FromC10dOptions& options = {});

}  // namespace gradwire
