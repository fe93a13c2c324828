// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The calls of GroupOverC10d: each is put in the engine's words, started, and followed to its end.
#include "gradwire/process_group/c10d/group_over_c10d_internal.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/sigpipe.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/dtype_internal.h"
#include "gradwire/process_group/ordered_calls_internal.h"
#include "gradwire/process_group/tensor_memory_internal.h"
#include "gradwire/process_group/validate_internal.h"

namespace gradwire::internal {
namespace {

template <class Theirs>
Theirs options_for(const CollectiveOptions& ours, Milliseconds group_timeout) {
  Theirs theirs;
  theirs.timeout = ours.timeout.count() == 0 ? group_timeout : ours.timeout;
  theirs.asyncOp = ours.async;
  return theirs;
}

// Views of memory in order as a list of its parts for the ranks.
Tensors flat(const Tensors& tensors) {
  Tensors all;
  for (const at::Tensor& tensor : tensors) all.push_back(tensor.view({-1}));
  return all;
}

// A receive, which also knows from whom.
class ReceiveWork final : public Work {
 public:
  ReceiveWork(std::shared_ptr<Work> work, c10::intrusive_ptr<c10d::Work> received, int source)
      : work_(std::move(work)), received_(std::move(received)), source_(source) {}
  bool wait(Milliseconds timeout) override { return work_->wait(timeout); }
  Future future() override { return work_->future(); }
  int source_rank() const override { return source_ < 0 && received_ ? received_->sourceRank() : source_; }

 private:
  const std::shared_ptr<Work> work_;
  const c10::intrusive_ptr<c10d::Work> received_;
  const int source_;
};

}  // namespace

// One call: prepares tensors, starts the engine's calls, and returns the Work of all of them.
class GroupOverC10d::Launch {
 public:
  Launch(GroupOverC10d& group, const char* operation)
      : group_(group), what_(group.describe(operation)), engine_(group.engine(operation)) {}

  at::Tensor reads(const at::Tensor& tensor) {
    return keep(copied_in_turn(tensor, [&] { return prepare_to_move(group_.traits_, tensor, true, false); }));
  }
  at::Tensor writes(const at::Tensor& tensor) { return keep(prepare_to_move(group_.traits_, tensor, false, true)); }
  at::Tensor both(const at::Tensor& tensor) {
    return keep(copied_in_turn(tensor, [&] { return prepare_to_move(group_.traits_, tensor, true, true); }));
  }
  Tensors reads(const Tensors& tensors) {
    Tensors all;
    for (const at::Tensor& tensor : tensors) all.push_back(reads(tensor));
    return all;
  }
  Tensors writes(const Tensors& tensors) {
    Tensors all;
    for (const at::Tensor& tensor : tensors) all.push_back(writes(tensor));
    return all;
  }
  // Contiguous; of the tensor's own type.
  at::Tensor reads_to_reduce(const at::Tensor& tensor) {
    return keep(copied_in_turn(tensor, [&] { return Prepared{memory_with_values(tensor)->detach(), nullptr}; }));
  }
  // Before anything is sent. Throws InvalidArgument for a type, and UnsupportedError for an `op`, that gloo lacks.
  void require_reducible(const char* operation, const Tensors& tensors, ReduceOp op) const {
    if (group_.traits_.is_gloo) Validator(group_, operation).reducible(tensors);
    for (const at::Tensor& tensor : tensors) {
      if (can_reduce(group_.traits_, tensor.scalar_type(), op)) continue;
      throw UnsupportedError(concat(what_, ": gloo has no product of complex numbers"));
    }
  }
  at::Tensor reduces(const at::Tensor& source, const at::Tensor& target, ReduceOp op, c10d::ReduceOp& theirs) {
    return keep(copied_in_turn(source, [&] {
      PreparedReduction prepared = prepare_to_reduce(group_.traits_, source, target, op, group_.size());
      theirs = prepared.op;
      return std::move(prepared.tensor);
    }));
  }

  // Starts one call of the engine's. After an error nothing more is started.
  template <class Start>
  void start(const Start& start) {
    if (error_ || (error_ = group_.ledger_->failure())) return;
    // Gloo writes messages to its connections here and now.
    const NoSigpipe quiet;
    try {
      // No Work means that the engine put the call on the caller's own stream (NCCL, where it is not asynchronous).
      if (auto part = start(*engine_)) parts_.push_back(std::move(part));
    } catch (...) {
      error_ = group_.ledger_->fail(what_, std::current_exception(), /*at_call=*/true);
      if (!group_.ledger_->failure()) std::rethrow_exception(error_);
    }
  }

  std::shared_ptr<Work> follow(bool async, Outputs outputs) {
    if (error_) return failed_work(error_);
    auto work =
        follow_call(what_, group_.ledger_, std::move(parts_), after(), std::move(outputs), group_.shared_from_this());
    if (!async) settle(*work);
    return work;
  }

  std::shared_ptr<Work> follow_messages(Outputs outputs, Deadline deadline) {
    if (error_) return failed_work(error_);
    return internal::follow_messages(what_, group_.ledger_, std::move(parts_), after(), std::move(outputs), deadline,
                                     group_.waiters_, group_.shared_from_this());
  }

  // The same for a receive; `source` negative: from whom the engine says.
  std::shared_ptr<Work> follow_receive(Outputs outputs, Deadline deadline, int source) {
    const auto first = parts_.empty() ? c10::intrusive_ptr<c10d::Work>() : parts_.front();
    return std::make_shared<ReceiveWork>(follow_messages(std::move(outputs), deadline), first, source);
  }

 private:
  // What `prepare` makes of `source`: copied, where it is copied, when the group's earlier calls have written there.
  template <class Prepare>
  Prepared copied_in_turn(const at::Tensor& source, const Prepare& prepare) const {
    // Asked first: a call that ends while `prepare` copies may write after the copy has passed.
    const bool is_written = group_.ledger_->has_writer_of({source});
    Prepared prepared = prepare();
    if (prepared.memory.is_alias_of(source) || !is_written) return prepared;
    group_.before_next_call({source}, [&] { prepared = prepare(); });
    return prepared;
  }
  at::Tensor keep(Prepared prepared) {
    if (prepared.bring_back) bring_back_.push_back(std::move(prepared.bring_back));
    return prepared.memory;
  }
  std::function<void()> after() {
    if (bring_back_.empty()) return nullptr;
    return [all = std::move(bring_back_)] {
      for (const auto& one : all) one();
    };
  }
  void settle(Work& work) {
    try {
      work.wait();
    } catch (const AbortedError&) {
      if (!work.is_completed()) group_.abort(kInterrupted);
    } catch (const std::exception&) {
      // It stays in the Work.
    }
  }

  GroupOverC10d& group_;
  const std::string what_;
  const EnginePtr engine_;
  C10dWorks parts_;
  std::vector<std::function<void()>> bring_back_;
  std::exception_ptr error_;
};

template <>
std::shared_ptr<Work> GroupOverC10d::run(BroadcastCall& given) {
  Launch launch(*this, "broadcast");
  auto theirs = options_for<c10d::BroadcastOptions>(given.options, timeout());
  theirs.rootRank = given.options.root;
  for (const at::Tensor& tensor : given.tensors) {
    Tensors one{rank() == given.options.root ? launch.reads(tensor) : launch.both(tensor)};
    launch.start([&](c10d::Backend& engine) { return engine.broadcast(one, theirs); });
  }
  return launch.follow(given.options.async, Outputs::list(given.tensors));
}

template <>
std::shared_ptr<Work> GroupOverC10d::run(AllReduceCall& given) {
  Launch launch(*this, "all_reduce");
  launch.require_reducible("all_reduce", given.tensors, given.options.op);
  auto theirs = options_for<c10d::AllreduceOptions>(given.options, timeout());
  for (const at::Tensor& tensor : given.tensors) {
    Tensors one{launch.reduces(tensor, tensor, given.options.op, theirs.reduceOp)};
    launch.start([&](c10d::Backend& engine) { return engine.allreduce(one, theirs); });
  }
  return launch.follow(given.options.async, Outputs::list(given.tensors));
}

template <>
std::shared_ptr<Work> GroupOverC10d::run(ReduceCall& given) {
  Launch launch(*this, "reduce");
  launch.require_reducible("reduce", given.tensors, given.options.op);
  auto theirs = options_for<c10d::ReduceOptions>(given.options, timeout());
  theirs.rootRank = given.options.root;
  for (const at::Tensor& tensor : given.tensors) {
    const at::Tensor target = rank() == given.options.root ? tensor : at::Tensor();
    Tensors one{launch.reduces(tensor, target, given.options.op, theirs.reduceOp)};
    launch.start([&](c10d::Backend& engine) { return engine.reduce(one, theirs); });
  }
  return launch.follow(given.options.async, Outputs::list(given.tensors));
}

template <>
std::shared_ptr<Work> GroupOverC10d::run(AllGatherCall& given) {
  Launch launch(*this, "all_gather");
  const auto theirs = options_for<c10d::AllgatherOptions>(given.options, timeout());
  for (std::size_t i = 0; i < given.inputs.size(); ++i) {
    std::vector<Tensors> lists{flat(launch.writes(given.outputs[i]))};
    Tensors one{launch.reads(given.inputs[i]).view({-1})};
    launch.start([&](c10d::Backend& engine) { return engine.allgather(lists, one, theirs); });
  }
  return launch.follow(given.options.async, Outputs::lists(given.outputs));
}

template <>
std::shared_ptr<Work> GroupOverC10d::run(AllGatherIntoTensorCall& given) {
  Launch launch(*this, "all_gather_into_tensor");
  const auto theirs = options_for<c10d::AllgatherOptions>(given.options, timeout());
  at::Tensor whole = launch.writes(given.output).view({-1});
  at::Tensor part = launch.reads(given.input).view({-1});
  launch.start([&](c10d::Backend& engine) { return engine._allgather_base(whole, part, theirs); });
  return launch.follow(given.options.async, Outputs::one(given.output));
}

template <>
std::shared_ptr<Work> GroupOverC10d::run(GatherCall& given) {
  Launch launch(*this, "gather");
  auto theirs = options_for<c10d::GatherOptions>(given.options, timeout());
  theirs.rootRank = given.options.root;
  for (std::size_t i = 0; i < given.inputs.size(); ++i) {
    std::vector<Tensors> lists;
    if (rank() == given.options.root) lists.push_back(flat(launch.writes(given.outputs[i])));
    Tensors one{launch.reads(given.inputs[i]).view({-1})};
    launch.start([&](c10d::Backend& engine) { return engine.gather(lists, one, theirs); });
  }
  return launch.follow(given.options.async, Outputs::lists(given.outputs));
}

template <>
std::shared_ptr<Work> GroupOverC10d::run(ScatterCall& given) {
  Launch launch(*this, "scatter");
  auto theirs = options_for<c10d::ScatterOptions>(given.options, timeout());
  theirs.rootRank = given.options.root;
  for (std::size_t i = 0; i < given.outputs.size(); ++i) {
    std::vector<Tensors> lists;
    if (rank() == given.options.root) lists.push_back(flat(launch.reads(given.inputs[i])));
    Tensors one{launch.writes(given.outputs[i]).view({-1})};
    launch.start([&](c10d::Backend& engine) { return engine.scatter(one, lists, theirs); });
  }
  return launch.follow(given.options.async, Outputs::list(given.outputs));
}

template <>
std::shared_ptr<Work> GroupOverC10d::run(ReduceScatterTensorCall& given) {
  const c10::NoGradGuard no_grad;
  Launch launch(*this, "reduce_scatter_tensor");
  launch.require_reducible("reduce_scatter_tensor", {given.output}, given.options.op);
  auto theirs = options_for<c10d::ReduceScatterOptions>(given.options, timeout());
  at::Tensor part = launch.reduces(given.output, given.output, given.options.op, theirs.reduceOp).view({-1});
  // What a reduction changes before it starts is changed in a copy of the input; else the engine reads the input.
  const bool divides_first =
      given.options.op.kind == ReduceOp::Kind::avg && divides_before_sum(given.input.scalar_type());
  const bool as_it_is = given.options.op.kind != ReduceOp::Kind::premul_sum && !divides_first &&
                        !given.input.is_complex() && given.input.scalar_type() != at::kBool;
  at::Tensor whole = as_it_is ? launch.reads_to_reduce(given.input)
                              : launch.reduces(given.input, at::Tensor(), given.options.op, theirs.reduceOp);
  whole = whole.view({-1});
  launch.start([&](c10d::Backend& engine) { return engine._reduce_scatter_base(part, whole, theirs); });
  return launch.follow(given.options.async, Outputs::one(given.output));
}

template <>
std::shared_ptr<Work> GroupOverC10d::run(ReduceScatterCall& given) {
  const c10::NoGradGuard no_grad;
  // Through one tensor: engines agree on what that means, and not on lists.
  std::vector<std::shared_ptr<Work>> works;
  for (std::size_t i = 0; i < given.outputs.size(); ++i) {
    at::Tensor whole;
    before_next_call(given.inputs[i], [&] {
      Tensors rows;
      for (const at::Tensor& input : given.inputs[i]) rows.push_back(input.reshape({-1}));
      whole = at::cat(rows);
    });
    ReduceScatterTensorCall part{given.outputs[i], whole, given.options};
    works.push_back(run(part));
  }
  return work_of_all(std::move(works), Outputs::list(given.outputs));
}

template <>
std::shared_ptr<Work> GroupOverC10d::run(AllToAllCall& given) {
  if (traits_.is_gloo) return all_to_all_in_one(given.outputs, given.inputs, given.options);
  Launch launch(*this, "all_to_all");
  const auto theirs = options_for<c10d::AllToAllOptions>(given.options, timeout());
  Tensors to = flat(launch.writes(given.outputs));
  Tensors from = flat(launch.reads(given.inputs));
  launch.start([&](c10d::Backend& engine) { return engine.alltoall(to, from, theirs); });
  return launch.follow(given.options.async, Outputs::list(given.outputs));
}

template <>
std::shared_ptr<Work> GroupOverC10d::run(AllToAllSingleCall& given) {
  Launch launch(*this, "all_to_all_single");
  const auto theirs = options_for<c10d::AllToAllOptions>(given.options, timeout());
  at::Tensor to = launch.writes(given.output).view({-1});
  at::Tensor from = launch.reads(given.input).view({-1});
  // Splits of the elements that the engine sees, which are bytes at times: sizes of a row, not of a tensor.
  std::int64_t row = 1;
  for (const std::int64_t extent : given.input.sizes().slice(1)) row *= extent;
  row *= static_cast<std::int64_t>(given.input.element_size() / from.element_size());
  std::vector<std::int64_t> to_splits;
  std::vector<std::int64_t> from_splits;
  for (const std::int64_t split : given.output_splits) to_splits.push_back(split * row);
  for (const std::int64_t split : given.input_splits) from_splits.push_back(split * row);
  launch.start([&](c10d::Backend& engine) { return engine.alltoall_base(to, from, to_splits, from_splits, theirs); });
  return launch.follow(given.options.async, Outputs::one(given.output));
}

// Gloo's lists must be of one size; its splits need not.
std::shared_ptr<Work> GroupOverC10d::all_to_all_in_one(const Tensors& outputs, const Tensors& inputs,
                                                       const AllToAllOptions& options) {
  const c10::NoGradGuard no_grad;
  std::vector<std::int64_t> to_splits;
  std::vector<std::int64_t> from_splits;
  std::int64_t expected = 0;
  for (const at::Tensor& output : outputs) {
    to_splits.push_back(output.numel());
    expected += output.numel();
  }
  for (const at::Tensor& input : inputs) from_splits.push_back(input.numel());
  at::Tensor from;
  before_next_call(inputs, [&] {
    Tensors rows;
    for (const at::Tensor& input : inputs) rows.push_back(input.detach().reshape({-1}));
    from = at::cat(rows);
  });
  at::Tensor to = at::empty({expected}, from.options());
  AllToAllSingleCall in_one{to, from, to_splits, from_splits, options};
  auto work = run(in_one);
  return work_after(
      std::move(work),
      [to, to_splits, outputs] {
        const Tensors parts = to.split_with_sizes(to_splits);
        for (std::size_t i = 0; i < outputs.size(); ++i) copy_back(outputs[i], parts[i].view(outputs[i].sizes()));
      },
      Outputs::list(outputs));
}

template <>
std::shared_ptr<Work> GroupOverC10d::run(BarrierCall& given) {
  Launch launch(*this, "barrier");
  auto theirs = options_for<c10d::BarrierOptions>(given.options, timeout());
  theirs.device_ids.assign(given.options.device_ids.begin(), given.options.device_ids.end());
  launch.start([&](c10d::Backend& engine) { return engine.barrier(theirs); });
  return launch.follow(given.options.async, Outputs::list({}));
}

template <>
std::shared_ptr<Work> GroupOverC10d::run(SendCall& given) {
  const Deadline deadline = Deadline::after(timeout());
  Launch launch(*this, "send");
  for (const at::Tensor& tensor : given.tensors) {
    Tensors one{launch.reads(tensor)};
    launch.start([&](c10d::Backend& engine) { return engine.send(one, given.destination, given.tag); });
  }
  return launch.follow_messages(Outputs::list(given.tensors), deadline);
}

std::shared_ptr<Work> GroupOverC10d::receive(const char* operation, Tensors& tensors, int source, int tag) {
  const Deadline deadline = Deadline::after(timeout());
  Launch launch(*this, operation);
  for (const at::Tensor& tensor : tensors) {
    Tensors one{launch.writes(tensor)};
    launch.start([&](c10d::Backend& engine) {
      return source < 0 ? engine.recvAnysource(one, tag) : engine.recv(one, source, tag);
    });
  }
  return launch.follow_receive(Outputs::list(tensors), deadline, source);
}

template <>
std::shared_ptr<Work> GroupOverC10d::run(RecvCall& given) {
  return receive("recv", given.tensors, given.source, given.tag);
}

template <>
std::shared_ptr<Work> GroupOverC10d::run(RecvAnySourceCall& given) {
  return receive("recv_anysource", given.tensors, -1, given.tag);
}

std::shared_ptr<Work> GroupOverC10d::do_call(GroupCall& call) {
  const auto make = [this](GroupCall& one) { return std::visit([this](auto& given) { return run(given); }, one); };
  return stages_devices() && is_on_device(call) ? staged_call(call, make) : make(call);
}

}  // namespace gradwire::internal
