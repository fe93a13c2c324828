// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Any group of libtorch's c10d (Gloo, NCCL, a plug-in, a group that Python made) as a gradwire group.
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

// Makes a further engine for `rank` of `size` ranks that meet in `store`. The engine is connected to all peers when the
// function returns.
using C10dFactory = std::function<c10::intrusive_ptr<c10d::Backend>(const c10::intrusive_ptr<c10d::Store>& store,
                                                                    int rank, int size, Milliseconds timeout)>;

struct FromC10dOptions {
  // The store through which duplicates and splits meet, monitored barriers report, and an abort leaves its reason. This
  // group alone uses its keys. Null: a part of the c10d group's own store, where the group has one.
  std::shared_ptr<Store> store;
  // Makes the engines of duplicates and splits. Empty: the engine's own split() does, where the engine has it.
  C10dFactory factory;
  // The process of every rank (gradwire/base/process_identity.h), by which errors name ranks of this host that died.
  // Empty: the ranks tell each other their processes through the store.
  std::vector<std::string> processes;
  // true: for a backend that to_c10d() made, from_c10d() returns the group underneath. false: it makes a group over
  // that backend.
  bool unwrap = true;
};

// Returns `backend` as a ProcessGroup that shares ownership of it. The group promises what its engine promises
// (docs/backends.md): no same bits beyond the engine's, no detection of mismatched calls. In detail:
//   - Tensors: each tensor of a list is one call of the engine. Tensors whose strides or dtype the engine does not know
//     are copied, or moved as bytes. On Gloo, AVG, PREMUL_SUM and reductions of bool are made from other reductions.
//   - Timeouts: timeout() is that of the engine, where its options tell one, else kDefaultTimeout. The timeouts of
//     calls are passed on to the engine.
//   - Errors are gradwire's, with rank, group and operation:
//     TimeoutError, PeerError, UnsupportedError, InvalidArgument. A PeerError names ranks that aborted, and ranks that
//     died on the host of a rank that saw the death; other peers are not known. After the first TimeoutError or
//     PeerError every later call fails with the same error. Exceptions of a group that Python made pass unchanged.
//   - dup() and split() need a store, and a factory or an engine that splits. Duplicates use a part of the store. They
//     are connected to all their peers when dup() returns. Where no duplicate can be made, dup() returns null, and DDP
//     runs without lanes; split() throws UnsupportedError.
//   - abort() ends the calls under way on this rank at once. On Gloo it closes the connections, so that the other ranks
//     fail too. The same happens after an error, and when the group is destroyed while calls are under way.
//   - SIGPIPE: writes to a connection that a peer has closed raise no SIGPIPE on threads that this group starts or that
//     call it. An engine that was made elsewhere keeps its own threads as they are.
//   - then-callbacks run on the engine's threads, and must not wait there for other calls of the group. On a lane every
//     collective has ended when its call returns.
// Ranks wrap the c10d groups of one store in the same order. The caller owns the result. Throws InvalidArgument when
// `backend` is null.
std::shared_ptr<ProcessGroup> from_c10d(c10::intrusive_ptr<c10d::Backend> backend, const FromC10dOptions& options = {});

// The same for a c10d::ProcessGroup. The engine is the group's backend where it has one; where the group has several
// backends, or is made in Python, the engine is the group itself.
//
// An engine that serves no tensors on the CPU (NCCL) gets a group beside it that does, made in a part of the store with
// the backend "auto", for DDP exchanges small data between ranks on the CPU. from_c10d() is collective then, and throws
// what make_process_group() throws too. Duplicates share the engine (docs/decisions/0028); split() needs a factory.
std::shared_ptr<ProcessGroup> from_c10d(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                        const FromC10dOptions& options = {});

}  // namespace gradwire
