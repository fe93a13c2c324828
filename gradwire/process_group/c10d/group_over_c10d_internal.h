// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The class behind from_c10d().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/base/process.h"
#include "gradwire/process_group/c10d/c10d_messages_internal.h"
#include "gradwire/process_group/c10d/end_record_internal.h"
#include "gradwire/process_group/c10d/engine_traits_internal.h"
#include "gradwire/process_group/c10d/from_c10d.h"
#include "gradwire/process_group/c10d/store_barriers_internal.h"
#include "gradwire/process_group/call_group.h"
#include "gradwire/process_group/closable.h"
#include "gradwire/process_group/device_engine_internal.h"
#include "gradwire/process_group/duplicate_list_internal.h"
#include "gradwire/process_group/staged_call_internal.h"

namespace gradwire::internal {

// What the ranks of a new group have to meet, and to connect a further engine.
struct EngineMeeting {
  std::shared_ptr<Store> store;  // for this meeting alone
  int rank = -1;
  int size = 0;
  Deadline deadline = Deadline::never();   // of the meeting
  Milliseconds timeout = kDefaultTimeout;  // of the engine's calls
  std::vector<std::string> processes;      // process_identity() by rank; empty where they are not known
  // Called now and then while this rank waits for the others. Throws when the group that the new one is made of has
  // ended on this rank or one of the others. May be null.
  std::function<void()> check;
};
// Returns the connected engine.
using EngineMaker = std::function<c10::intrusive_ptr<c10d::Backend>(const EngineMeeting& meeting)>;

// A group over one engine. Destroying the group aborts calls under way of which only futures are held. In a forked
// child the group does not touch the engine.
class GroupOverC10d final : public CallGroup, public Closable, public DeviceEngine, public DeviceStager {
 public:
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

  // `maker` makes the engines of duplicates and splits; null: the engine's own split() does, where the engine has it.
  // `processes`: as in EndRecord.
  GroupOverC10d(BackendPtr backend, std::shared_ptr<Store> store, EngineMaker maker,
                std::vector<std::string> processes);
  ~GroupOverC10d() override;

  bool supports(c10::DeviceType device) const override;
  void abort(const std::string& reason) override;
  void shutdown() override;
  bool is_open() const override;
  void before_next_call(const Tensors& inputs, std::function<void()> copy) override;
  void require_well() override;
  bool stages_devices() const override { return traits_.is_gloo; }

 protected:
  std::string get_backend_name() const override { return name_; }
  std::shared_ptr<Work> do_call(GroupCall& call) override;
  void do_monitored_barrier(Milliseconds timeout, bool wait_all) override;
  std::shared_ptr<ProcessGroup> do_dup() override;
  std::shared_ptr<ProcessGroup> do_split(int color, int key, const std::optional<std::string>& desc) override;
  at::Tensor do_allocate(std::int64_t numel, at::ScalarType dtype) override;

 private:
  class Launch;  // turns one call of this group into calls of the engine

  // One for each kind of call.
  template <class Given>
  std::shared_ptr<Work> run(Given& given);
  std::string describe(const char* operation) const;
  // An engine that any thread may let go last, also one of the engine's own, which could not join itself.
  using EnginePtr = std::shared_ptr<c10d::Backend>;
  static EnginePtr own(BackendPtr backend);
  // The engine, for a call of `operation`. Throws InvalidArgument after shutdown() and in a forked child.
  EnginePtr engine(const char* operation) const;
  std::shared_ptr<Work> all_to_all_in_one(const Tensors& outputs, const Tensors& inputs,
                                          const AllToAllOptions& options);
  std::shared_ptr<Work> receive(const char* operation, Tensors& tensors, int source, int tag);
  // Makes a group of the ranks `members`; null where no further engine can be made.
  std::shared_ptr<GroupOverC10d> make_group(const char* operation, int color, const std::vector<int>& members);
  // Waits for the calls under way. Aborts them when this thread is interrupted, and returns whether that was so.
  bool wait_for_calls();

  const std::string name_;
  const EngineTraits traits_;
  const OwnerProcess owner_;
  const EngineMaker maker_;
  const std::shared_ptr<EndRecord> end_;
  const std::shared_ptr<C10dLedger> ledger_;
  const std::shared_ptr<MessageWaiters> waiters_;
  mutable Mutex mutex_;
  EnginePtr backend_ GRADWIRE_GUARDED_BY(mutex_);  // null after shutdown()
  std::shared_ptr<Store> store_ GRADWIRE_GUARDED_BY(mutex_);
  bool closed_ GRADWIRE_GUARDED_BY(mutex_) = false;     // by abort()
  std::uint64_t made_ GRADWIRE_GUARDED_BY(mutex_) = 0;  // duplicates and splits
  StoreBarriers barriers_;
  DuplicateList duplicates_;
};

}  // namespace gradwire::internal
