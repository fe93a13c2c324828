// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The class behind from_c10d().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/base/process.h"
#include "gradwire/process_group/c10d/c10d_call_internal.h"
#include "gradwire/process_group/c10d/c10d_dialect_internal.h"
#include "gradwire/process_group/c10d/from_c10d.h"
#include "gradwire/process_group/closable.h"
#include "gradwire/process_group/duplicate_list_internal.h"

namespace gradwire::internal {

// A group over one engine. What outlives it are calls whose futures alone are held: letting go of the group aborts
// them. In a forked child nothing of the engine is touched.
class GroupOverC10d final : public ProcessGroup, public Closable {
 public:
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

  GroupOverC10d(BackendPtr backend, std::shared_ptr<Store> store, C10dFactory factory);
  ~GroupOverC10d() override;

  bool supports(c10::DeviceType device) const override;
  void abort(const std::string& reason) override;
  void shutdown() override;
  bool is_open() const override;

 protected:
  std::string get_backend_name() const override { return name_; }
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
  void do_monitored_barrier(Milliseconds timeout, bool wait_all) override;
  std::shared_ptr<Work> do_send(Tensors& tensors, int destination, int tag) override;
  std::shared_ptr<Work> do_recv(Tensors& tensors, int source, int tag) override;
  std::shared_ptr<Work> do_recv_anysource(Tensors& tensors, int tag) override;
  std::shared_ptr<ProcessGroup> do_dup() override;
  std::shared_ptr<ProcessGroup> do_split(int color, int key, const std::optional<std::string>& desc) override;
  at::Tensor do_allocate(std::int64_t numel, at::ScalarType dtype) override;

 private:
  class Launch;  // what one call of ours needs to become calls of the engine

  std::string describe(const char* operation) const;
  // The engine, for a call of `operation`. Throws InvalidArgument after shutdown() and in a forked child.
  BackendPtr engine(const char* operation) const;
  std::shared_ptr<Work> all_to_all_in_one(const Tensors& outputs, const Tensors& inputs,
                                          const AllToAllOptions& options);
  std::shared_ptr<Work> receive(const char* operation, Tensors& tensors, int source, int tag);
  // Null where it cannot be made.
  std::shared_ptr<GroupOverC10d> make_group(const char* operation, int color, const std::vector<int>& members);
  void barrier_in_store(const std::shared_ptr<Store>& store, Milliseconds timeout, bool wait_all);

  const std::string name_;
  const Dialect dialect_;
  const OwnerProcess owner_;
  const C10dFactory factory_;
  const std::shared_ptr<C10dLedger> ledger_;
  const std::shared_ptr<MessageWaiters> waiters_;
  mutable Mutex mutex_;
  BackendPtr backend_ GRADWIRE_GUARDED_BY(mutex_);  // null after shutdown()
  std::shared_ptr<Store> store_ GRADWIRE_GUARDED_BY(mutex_);
  std::uint64_t made_ GRADWIRE_GUARDED_BY(mutex_) = 0;      // duplicates and splits
  std::uint64_t barriers_ GRADWIRE_GUARDED_BY(mutex_) = 0;  // monitored ones
  DuplicateList duplicates_;
};

}  // namespace gradwire::internal
