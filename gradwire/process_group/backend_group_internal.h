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
#include "gradwire/process_group/call_group.h"
#include "gradwire/process_group/closable.h"
#include "gradwire/process_group/duplicate_list_internal.h"
#include "gradwire/process_group/ordered_calls_internal.h"
#include "gradwire/process_group/point_to_point_work_internal.h"
#include "gradwire/process_group/staged_call_internal.h"
#include "gradwire/process_group/staging_memory_internal.h"
#include "gradwire/store/store.h"

namespace gradwire::internal {

// A group over one Channel. The Backend is shared with the group's duplicates and goes with the last of them.
//
// Order. The group's collectives, dup, split and allocate are one sequence (see OrderedCalls). A call with `async`
// false, and any call on a lane, runs on the calling thread when no call is under way. Other calls run on the group's
// one worker, with the caller's ThreadLocalState. Then-callbacks run on that worker too; a collective called in a
// then-callback has run when the call returns.
//
// Deadlines. The clock of a collective starts when it is called, so time in the queue counts (as in PyTorch).
//
// Errors. A call after the first error gets that error, from its Work. A group that was shut down refuses calls with
// InvalidArgument; in a forked child every call does.
//
// Tensors on devices go through staging memory (staged_call_internal.h).
//
// End. A Work keeps its group alive. A group that is destroyed while calls are under way, of which only futures are
// held, aborts these calls: the futures fail with AbortedError, and ranks that need this rank's part with PeerError.
// shutdown() waits for these calls instead, and refuses calls that then-callbacks make meanwhile.
class BackendGroup final : public CallGroup, public Closable, public DeviceStager {
 public:
  // `channel` keeps its backend alive. `in_place`: Capabilities::in_place_memory of the backend. New groups of split()
  // meet in `store`, whose keys are this group's alone; null: no split().
  BackendGroup(std::shared_ptr<Channel> channel, std::string backend_name, bool in_place, std::shared_ptr<Store> store);
  ~BackendGroup() override;

  bool supports(c10::DeviceType device) const override {
    return device == c10::DeviceType::CPU || is_stageable(device);
  }
  bool stages_devices() const override { return true; }
  bool multiplies_as_it_sums() const override { return true; }
  void abort(const std::string& reason) override;
  void shutdown() override;
  bool is_open() const override;
  void before_next_call(const Tensors& inputs, std::function<void()> copy) override;

 protected:
  std::string get_backend_name() const override { return backend_name_; }
  std::shared_ptr<Work> do_call(GroupCall& call) override;
  std::shared_ptr<ProcessGroup> do_dup() override;
  std::shared_ptr<ProcessGroup> do_split(int color, int key, const std::optional<std::string>& desc) override;
  at::Tensor do_allocate(std::int64_t numel, at::ScalarType dtype) override;
  Tensors do_symmetric_memory(const at::Tensor& tensor) override;

 private:
  // Memory of the channel, in its turn. Collective; throws what the channel throws.
  Allocation allocation_of(std::size_t bytes, const CollectiveOptions& options = {});
  // Memory that the other ranks read where it lies; undefined where the engine has none, or refused it to a rank, and
  // when the group is at its end, which the call that wants the memory then finds. Throws a MismatchError where another
  // rank makes another call. Collective.
  at::Tensor in_place_memory(std::int64_t bytes, const CollectiveOptions& options);
  // The body of a collective: blocks until this rank's part is done.
  using Body = std::function<void(Channel& channel, const CallOptions& options, const Outputs& outputs)>;
  // The body of what is no collective of tensors.
  using PlainBody = std::function<void(Channel& channel, const CallOptions& options)>;

  // One for each kind of call.
  template <class Given>
  std::shared_ptr<Work> run(Given& given);
  CallOptions call_options(const CollectiveOptions& options, Deadline::Clock::time_point begin) const;
  // The channel, for a call of `operation`. Throws InvalidArgument when the group was shut down, or belongs to a parent
  // process.
  std::shared_ptr<Channel> channel(const char* operation) const;
  // Runs `body` in its turn, now or on the worker, as `options` say. `body` is called as a Body is.
  template <class CallBody>
  std::shared_ptr<Work> collective(const char* operation, const CollectiveOptions& options, Outputs outputs,
                                   CallBody body);
  std::shared_ptr<Work> post(const char* operation, const CollectiveOptions& options, Outputs outputs, Body body);
  // Runs `body` in its turn, and returns when the body has run. Throws what the body throws.
  void in_turn(const char* operation, const PlainBody& body, const CollectiveOptions& options = {});
  std::shared_ptr<Work> receive(const char* operation, Tensors& tensors, int source, int tag);
  std::string describe(const char* operation) const;
  [[noreturn]] void fail_shut_down(const char* operation) const;

  const std::string backend_name_;
  const bool in_place_;
  const OwnerProcess owner_;
  const std::shared_ptr<CompletionWatcher> watcher_;
  mutable Mutex mutex_;
  std::shared_ptr<Channel> channel_ GRADWIRE_GUARDED_BY(mutex_);  // null after shutdown()
  // After shutdown(): receives that a thread still waits for hold it, and abort() ends them.
  std::weak_ptr<Channel> ended_channel_ GRADWIRE_GUARDED_BY(mutex_);
  std::shared_ptr<Store> store_ GRADWIRE_GUARDED_BY(mutex_);
  std::uint64_t dups_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  std::uint64_t splits_ GRADWIRE_GUARDED_BY(mutex_) = 0;
  DuplicateList duplicates_;
  StagingMemory staging_;
  OrderedCalls calls_;  // goes first: its worker uses the channel
};

// Makes a group over the first channel of `backend`.
std::shared_ptr<BackendGroup> make_backend_group(std::shared_ptr<Backend> backend, std::shared_ptr<Store> store);

}  // namespace gradwire::internal
