// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/c10d/to_c10d.h"

#include <algorithm>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/observe/flight_recorder.h"
#include "gradwire/observe/interpreter_line_internal.h"
#include "gradwire/process_group/c10d/c10d_backend_internal.h"
#include "gradwire/process_group/c10d/c10d_convert_internal.h"
#include "gradwire/process_group/c10d/c10d_lists_internal.h"
#include "gradwire/process_group/c10d/c10d_store.h"
#include "gradwire/process_group/c10d/c10d_work_internal.h"
#include "gradwire/process_group/init.h"
#include "gradwire/process_group/profiled_by_caller.h"

namespace gradwire {
namespace internal {
namespace {

using c10d::OpType;

// What every kind of options shares. c10d's -1 and 0 mean the group's timeout, as our 0 does.
template <class Ours, class Theirs>
Ours options_of(const Theirs& theirs) {
  Ours ours;
  ours.async = theirs.asyncOp;
  ours.timeout = std::max(theirs.timeout, Milliseconds{0});
  return ours;
}

template <class Ours, class Theirs>
Ours options_with_op(const Theirs& theirs) {
  Ours ours = options_of<Ours>(theirs);
  ours.op = reduce_op_from_c10d(theirs.reduceOp);
  return ours;
}

template <class Ours, class Theirs>
Ours options_with_root(const Theirs& theirs) {
  Ours ours = options_of<Ours>(theirs);
  ours.root = static_cast<int>(theirs.rootRank);
  return ours;
}

Tensors all_of(const std::vector<Tensors>& lists) {
  Tensors all;
  for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

// torch 2.11 has no name for this operation.
template <class Type>
constexpr Type reduce_scatter_tensor_coalesced_type() {
  if constexpr (requires { Type::REDUCE_SCATTER_TENSOR_COALESCED; }) {
    return Type::REDUCE_SCATTER_TENSOR_COALESCED;
  } else {
    return Type::_REDUCE_SCATTER_BASE;
  }
}

// How a monitored barrier has failed, as programs written for Gloo expect to read it.
std::string barrier_failure(int rank, const std::vector<int>& missing, Milliseconds timeout) {
  if (rank != 0) {
    return concat("Rank ", rank, " successfully reached monitoredBarrier, but received errors while waiting for ",
                  "send/recv from rank 0");
  }
  if (timeout.count() == 0) return "Rank 0 timed out in monitoredBarrier after 0 ms";
  std::string ranks = name_ranks(missing);
  ranks.front() = 'R';
  return ranks + " failed to pass monitoredBarrier";
}

bool is_sparse(const Tensors& tensors) {
  return !tensors.empty() && tensors.front().defined() && tensors.front().is_sparse();
}

}  // namespace

C10dBackend::C10dBackend(std::shared_ptr<ProcessGroup> group, bool owns)
    : c10d::Backend(group->rank(), group->size()),
      group_(std::move(group)),
      owns_(owns),
      options_(c10::make_intrusive<C10dOptions>("gradwire", group_->timeout())) {
  init();
}

C10dBackend::~C10dBackend() {
  if (!owns_) return;
  try {
    group_->shutdown();
  } catch (const std::exception&) {
    // The group has failed already, and said so to whoever waited.
  }
}

template <class Call>
C10dBackend::WorkPtr C10dBackend::start(OpType type, const char* title, const Tensors& inputs, const Call& call) {
  const observe::CallerLine caller(observe::interpreter_line());
  auto work = c10::make_intrusive<WorkForC10d>(rank_, type, title, inputs,
                                               sequence_.fetch_add(1, std::memory_order_relaxed) + 1);
  const ProfiledByCaller by_the_work;
  work->follow(call());
  return work;
}

C10dBackend::WorkPtr C10dBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return start(OpType::BROADCAST, "gradwire:broadcast", tensors, [&] {
    auto ours = options_with_root<BroadcastOptions>(options);
    ours.root_tensor = static_cast<int>(options.rootTensor);
    return tensors.size() > 1 ? broadcast_list(*group_, tensors, ours) : group_->broadcast(tensors, ours);
  });
}

C10dBackend::WorkPtr C10dBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (is_sparse(tensors)) return allreduce_sparse(tensors, options);
  return start(OpType::ALLREDUCE, "gradwire:all_reduce", tensors, [&] {
    const auto ours = options_with_op<AllReduceOptions>(options);
    return tensors.size() > 1 ? all_reduce_list(*group_, tensors, ours) : group_->all_reduce(tensors, ours);
  });
}

C10dBackend::WorkPtr C10dBackend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (options.reduceOp.op_ != c10d::ReduceOp::SUM)
    throw InvalidArgument("gradwire: an all_reduce of sparse tensors knows SUM alone; make them dense for another");
  return start(OpType::_ALLREDUCE_SPARSE, "gradwire:sparse_all_reduce", tensors, [&] {
    all_reduce_sparse_list(*group_, tensors, options_of<CollectiveOptions>(options));
    return gradwire::completed_work(tensors);
  });
}

C10dBackend::WorkPtr C10dBackend::allreduce_coalesced(Tensors& tensors,
                                                      const c10d::AllreduceCoalescedOptions& options) {
  return start(OpType::ALLREDUCE_COALESCED, "gradwire:all_reduce", tensors,
               [&] { return group_->all_reduce_coalesced(tensors, options_with_op<AllReduceOptions>(options)); });
}

C10dBackend::WorkPtr C10dBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return start(OpType::REDUCE, "gradwire:reduce", tensors, [&] {
    auto ours = options_with_op<ReduceOptions>(options);
    ours.root = static_cast<int>(options.rootRank);
    ours.root_tensor = static_cast<int>(options.rootTensor);
    return group_->reduce(tensors, ours);
  });
}

C10dBackend::WorkPtr C10dBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                            const c10d::AllgatherOptions& options) {
  return start(OpType::ALLGATHER, "gradwire:all_gather", inputs, [&] {
    const auto ours = options_of<AllGatherOptions>(options);
    return is_list_all_gather(*group_, outputs, inputs) ? all_gather_list(*group_, outputs, inputs, ours)
                                                        : group_->all_gather(outputs, inputs, ours);
  });
}

C10dBackend::WorkPtr C10dBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::AllgatherOptions& options) {
  return start(OpType::_ALLGATHER_BASE, "gradwire:all_gather", {input},
               [&] { return group_->all_gather_into_tensor(output, input, options_of<AllGatherOptions>(options)); });
}

C10dBackend::WorkPtr C10dBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                      const c10d::AllgatherOptions& options) {
  return start(OpType::ALLGATHER_COALESCED, "gradwire:all_gather", inputs, [&] {
    // c10d: a list a rank, with an output for each input. Ours: a list an input, with an output for each rank.
    std::vector<Tensors> ours(inputs.size());
    for (const Tensors& of_rank : outputs) {
      if (of_rank.size() != inputs.size()) {
        throw InvalidArgument(concat("gradwire: allgather_coalesced: a rank has ", of_rank.size(), " outputs for ",
                                     inputs.size(), " inputs"));
      }
      for (std::size_t i = 0; i < inputs.size(); ++i) ours[i].push_back(of_rank[i]);
    }
    return group_->all_gather(std::move(ours), inputs, options_of<AllGatherOptions>(options));
  });
}

C10dBackend::WorkPtr C10dBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                  const c10d::AllgatherOptions& options) {
  return start(OpType::COALESCED, "gradwire:all_gather", inputs, [&] {
    return group_->all_gather_into_tensor_coalesced(outputs, inputs, options_of<AllGatherOptions>(options));
  });
}

C10dBackend::WorkPtr C10dBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                         const c10d::GatherOptions& options) {
  return start(OpType::GATHER, "gradwire:gather", inputs,
               [&] { return group_->gather(outputs, inputs, options_with_root<GatherOptions>(options)); });
}

C10dBackend::WorkPtr C10dBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                          const c10d::ScatterOptions& options) {
  return start(OpType::SCATTER, "gradwire:scatter", all_of(inputs),
               [&] { return group_->scatter(outputs, inputs, options_with_root<ScatterOptions>(options)); });
}

C10dBackend::WorkPtr C10dBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                 const c10d::ReduceScatterOptions& options) {
  return start(OpType::REDUCE_SCATTER, "gradwire:reduce_scatter", all_of(inputs),
               [&] { return group_->reduce_scatter(outputs, inputs, options_with_op<ReduceScatterOptions>(options)); });
}

C10dBackend::WorkPtr C10dBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                       const c10d::ReduceScatterOptions& options) {
  return start(OpType::_REDUCE_SCATTER_BASE, "gradwire:reduce_scatter", {input}, [&] {
    return group_->reduce_scatter_tensor(output, input, options_with_op<ReduceScatterOptions>(options));
  });
}

C10dBackend::WorkPtr C10dBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                  const c10d::ReduceScatterOptions& options) {
  return start(reduce_scatter_tensor_coalesced_type<OpType>(), "gradwire:reduce_scatter", inputs, [&] {
    return group_->reduce_scatter_tensor_coalesced(outputs, inputs, options_with_op<ReduceScatterOptions>(options));
  });
}

C10dBackend::WorkPtr C10dBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                std::vector<std::int64_t>& output_splits,
                                                std::vector<std::int64_t>& input_splits,
                                                const c10d::AllToAllOptions& options) {
  return start(OpType::ALLTOALL_BASE, "gradwire:all_to_all", {input}, [&] {
    return group_->all_to_all_single(output, input, output_splits, input_splits, options_of<AllToAllOptions>(options));
  });
}

C10dBackend::WorkPtr C10dBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  return start(OpType::ALLTOALL, "gradwire:all_to_all", inputs,
               [&] { return group_->all_to_all(outputs, inputs, options_of<AllToAllOptions>(options)); });
}

C10dBackend::WorkPtr C10dBackend::barrier(const c10d::BarrierOptions& options) {
  return start(OpType::BARRIER, "gradwire:barrier", {},
               [&] { return group_->barrier(options_of<BarrierOptions>(options)); });
}

void C10dBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all) {
  const observe::CallerLine caller(observe::interpreter_line());
  const Milliseconds timeout = options.timeout;
  const auto fail = [&]<class E>(const E& error) {
    throw E(concat("gradwire: ", barrier_failure(rank_, error.peers(), timeout), ": ", error.what()), error.peers());
  };
  try {
    // c10d's -1 means the group's timeout, and here alone its 0 is no time at all.
    group_->monitored_barrier(timeout == c10d::kUnsetTimeout ? Milliseconds{0} : std::max(timeout, Milliseconds{1}),
                              wait_all);
  } catch (const TimeoutError& error) {
    fail(error);
  } catch (const PeerError& error) {
    fail(error);
  }
}

C10dBackend::WorkPtr C10dBackend::send(Tensors& tensors, int destination, int tag) {
  return start(OpType::SEND, "gradwire:send", tensors, [&] { return group_->send(tensors, destination, tag); });
}

C10dBackend::WorkPtr C10dBackend::recv(Tensors& tensors, int source, int tag) {
  return start(OpType::RECV, "gradwire:recv", tensors, [&] { return group_->recv(tensors, source, tag); });
}

C10dBackend::WorkPtr C10dBackend::recvAnysource(Tensors& tensors, int tag) {
  return start(OpType::RECVANYSOURCE, "gradwire:recvAnySource", tensors,
               [&] { return group_->recv_anysource(tensors, tag); });
}

void C10dBackend::setTimeout(std::chrono::milliseconds timeout) {
  group_->set_timeout(timeout);
  options_->timeout = timeout;
}

void C10dBackend::setGroupUid(const std::string& name) {
  c10d::Backend::setGroupUid(name);
  group_->set_group_name(name);
}

void C10dBackend::abort() { group_->abort("abort() was called on the c10d backend"); }

void C10dBackend::shutdown() { group_->shutdown(); }

C10dBackend::BackendPtr C10dBackend::merge(const StorePtr& store, const OptionsPtr& options, const int& rank,
                                           const int& size) {
  return make_c10d_backend(store, rank, size, options ? options->timeout : group_->timeout(), group_->name());
}

C10dBackend::BackendPtr C10dBackend::split(const StorePtr& store, const std::vector<int>& ranks,
                                           const OptionsPtr& options) {
  const auto place = std::find(ranks.begin(), ranks.end(), rank_);
  if (place == ranks.end()) return {};
  return merge(store, options, static_cast<int>(place - ranks.begin()), static_cast<int>(ranks.size()));
}

}  // namespace internal

c10::intrusive_ptr<c10d::Backend> to_c10d(std::shared_ptr<ProcessGroup> group) {
  if (group == nullptr) throw InvalidArgument("to_c10d: the group is null");
  return c10::make_intrusive<internal::C10dBackend>(std::move(group), /*owns=*/false);
}

std::shared_ptr<ProcessGroup> group_under(const c10::intrusive_ptr<c10d::Backend>& backend) {
  const auto* ours = dynamic_cast<const internal::C10dBackend*>(backend.get());
  return ours == nullptr ? nullptr : ours->group();
}

c10::intrusive_ptr<c10d::Backend> make_c10d_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    Milliseconds timeout, const std::string& engine) {
  auto group = make_process_group(engine, store_from_c10d(store), rank, size, timeout);
  return c10::make_intrusive<internal::C10dBackend>(std::move(group), /*owns=*/true);
}

}  // namespace gradwire
