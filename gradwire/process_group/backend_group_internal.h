// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The group of our own backends.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/backend/backend.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/process.h"
#include "gradwire/process_group/closable.h"
#include "gradwire/process_group/duplicate_list_internal.h"
#include "gradwire/process_group/ordered_calls_internal.h"
#include "gradwire/process_group/point_to_point_internal.h"
#include "gradwire/process_group/process_group.h"
#include "gradwire/store/store.h"

namespace gradwire::internal {

// A group over one Channel. The Backend is shared with the group's duplicates and goes with the last of them.
//
// Order. The group's collectives, dup, split and allocate are one sequence (see OrderedCalls). A call with `async`
// false, and any call on a lane, runs on its own thread when nothing is under way; others run on the group's one
// worker, which carries the caller's ThreadLocalState. Then-callbacks run on that worker too; a collective called in
// one has run when the call returns.
//
// Deadlines. The clock of a collective starts when it is called, so time in the queue counts (as in PyTorch).
//
// Errors. A call after the first error gets that error, from its Work. A group that was shut down refuses calls with
// InvalidArgument; in a forked child every call does.
//
// End. A Work keeps its group alive. A group that is let go with work under way (only futures are left of it) aborts
// that work: its futures fail with AbortedError, and ranks that need this one's part with PeerError. shutdown()
// finishes it instead; it refuses what then-callbacks would start meanwhile.
class BackendGroup final : public ProcessGroup, public Closable {
 public:
  // `channel` owns what it needs of its backend. `store` is where split() makes its rendezvous; null: no split. It is
  // this group's alone.
  BackendGroup(std::shared_ptr<Channel> channel, std::string backend_name, std::shared_ptr<Store> store);
  ~BackendGroup() override;

  void abort(const std::string& reason) override;
  void shutdown() override;
  bool is_open() const override;

 protected:
  std::string get_backend_name() const override { return backend_name_; }
  std::shared_ptr<Work> do_broadcast(Tensors& tensors, const BroadcastOptions& options) override;
  std::shared_ptr<Work> do_all_reduce(Tensors& tensors, const AllReduceOptions& options) override;
  std::shared_ptr<Work> do_reduce(Tensors& tensors, const ReduceOptions& options) override;
  std::shared_ptr<Work> do_all_gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                      const AllGatherOptions& options) override;
  std::shared_ptr<Work> do_all_gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                                  const AllGatherOptions& options) override;
  std::shared_ptr<Work> do_gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                  const GatherOptions& options) override;
  std::shared_ptr<Work> do_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                   const ScatterOptions& options) override;
  std::shared_ptr<Work> do_reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                          const ReduceScatterOptions& options) override;
  std::shared_ptr<Work> do_reduce_scatter_tensor(at::Tensor& output, at::Tensor& input,
                                                 const ReduceScatterOptions& options) override;
  std::shared_ptr<Work> do_all_to_all(Tensors& outputs, Tensors& inputs, const AllToAllOptions& options) override;
  std::shared_ptr<Work> do_all_to_all_single(at::Tensor& output, at::Tensor& input,
                                             std::vector<std::int64_t>& output_splits,
                                             std::vector<std::int64_t>& input_splits,
                                             const AllToAllOptions& options) override;
  std::shared_ptr<Work> do_barrier(const BarrierOptions& options) override;
  std::shared_ptr<Work> do_send(Tensors& tensors, int destination, int tag) override;
  std::shared_ptr<Work> do_recv(Tensors& tensors, int source, int tag) override;
  std::shared_ptr<Work> do_recv_anysource(Tensors& tensors, int tag) override;
  std::shared_ptr<ProcessGroup> do_dup() override;
  std::shared_ptr<ProcessGroup> do_split(int color, int key, const std::optional<std::string>& desc) override;
  at::Tensor do_allocate(std::int64_t numel, at::ScalarType dtype) override;

 private:
  // The body of a collective: blocks until this rank's part is done.
  using Body = std::function<void(Channel& channel, const CallOptions& options)>;

  CallOptions call_options(const CollectiveOptions& options) const;
  // The channel, for a call of `operation`. Throws InvalidArgument when the group was shut down, or belongs to a parent
  // process.
  std::shared_ptr<Channel> channel(const char* operation) const;
  // Runs `body` in its turn, now or on the worker, as `options` say.
  std::shared_ptr<Work> collective(const char* operation, const CollectiveOptions& options, Outputs outputs, Body body);
  // Runs `body` in its turn and returns when it has run. Throws what it throws.
  void in_turn(const char* operation, const Body& body);
  std::shared_ptr<Work> receive(const char* operation, Tensors& tensors, int source, int tag);
  std::shared_ptr<ProcessGroup> make_split(int color, int key, const std::optional<std::string>& desc,
                                           std::uint64_t number);
  std::string describe(const char* operation) const;
  [[noreturn]] void fail_shut_down(const char* operation) const;

  const std::string backend_name_;
  const OwnerProcess owner_;
  const std::shared_ptr<CompletionWatcher> watcher_;
  mutable Mutex mutex_;
  std::shared_ptr<Channel> channel_ GRADWIRE_GUARDED_BY(mutex_);  // null after shutdown()
  std::shared_ptr<Store> store_ GRADWIRE_GUARDED_BY(mutex_);
  std::uint64_t dups_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  std::uint64_t splits_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  DuplicateList duplicates_;
  OrderedCalls calls_;  // goes first: its worker uses the channel
};

// A group over `backend`'s first channel.
std::shared_ptr<BackendGroup> make_backend_group(std::shared_ptr<Backend> backend, std::shared_ptr<Store> store);

}  // namespace gradwire::internal
