// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/hooks/debugging_hooks.h"

#include <ATen/Functions.h>
#include <ATen/core/jit_type.h>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/hooks/norm_internal.h"
#include "gradwire/hooks/wrapper_internal.h"

namespace gradwire {
namespace {

class LoggingHook final : public internal::HookWrapper {
 public:
  LoggingHook(const std::shared_ptr<CommHook>& inner, BucketSink sink)
      : HookWrapper(traits_around(inner), inner), log_(std::make_shared<Log>(std::move(sink))) {
    if (!log_->sink) throw InvalidArgument("A logging hook needs a function that takes records; got null.");
  }

  Future run(GradBucket& bucket) override {
    const BucketRecord record{.iteration = bucket.iteration(),
                              .bucket = bucket.index(),
                              .is_last = bucket.is_last(),
                              .numel = bucket.buffer().numel(),
                              .dtype = bucket.buffer().scalar_type(),
                              .norm_before = std::sqrt(internal::sum_of_squares(bucket.buffer()))};
    const auto start = std::chrono::steady_clock::now();
    return run_hook(inner(), bucket)
        ->then(
            [log = log_, before = record, start](c10::ivalue::Future& done) {
              BucketRecord record = before;
              const at::Tensor result = tensor_of(done);
              record.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
              record.norm_after = std::sqrt(internal::sum_of_squares(result));
              MutexLock lock(log->mutex);
              log->sink(record);
              return c10::IValue(result);
            },
            c10::TensorType::get());
  }

 private:
  // The identity is the inner hook's, so one rank may log and another one not.
  static HookTraits traits_around(const std::shared_ptr<CommHook>& inner) {
    HookTraits traits = internal::traits_around("logging", inner, /*keeps_single_collective=*/true);
    traits.identity = inner->identity();
    return traits;
  }

  // The log is shared with futures, which may outlive the hook.
  struct Log {
    explicit Log(BucketSink to) : sink(std::move(to)) {}
    Mutex mutex;
    const BucketSink sink;
  };
  const std::shared_ptr<Log> log_;
};

class CheckingHook final : public internal::HookWrapper {
 public:
  explicit CheckingHook(const std::shared_ptr<CommHook>& inner)
      : HookWrapper("checking", inner, /*keeps_single_collective=*/false) {}

  Future run(GradBucket& bucket) override {
    const at::Tensor result = result_of(inner(), bucket);
    GradBucket reduced = bucket;
    reduced.set_buffer(result);
    compare(reduced);
    return completed_future(result);
  }

 private:
  void compare(const GradBucket& bucket) const {
    const auto& slots = bucket.layout().slots;
    const at::Tensor values = bucket.buffer().to(at::kCPU);
    const auto* memory = static_cast<const std::byte*>(values.const_data_ptr());
    const at::Tensor mine = at::empty({static_cast<std::int64_t>(slots.size())}, at::kLong);
    auto* sums = mine.mutable_data_ptr<std::int64_t>();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const auto size = static_cast<std::size_t>(values.element_size());
      sums[i] =
          static_cast<std::int64_t>(stable_hash_of_bits({memory + static_cast<std::size_t>(slots[i].offset) * size,
                                                         static_cast<std::size_t>(slots[i].numel) * size}));
    }
    ProcessGroup& group = bucket.group();
    std::vector<at::Tensor> all(static_cast<std::size_t>(group.size()));
    for (at::Tensor& one : all) one = at::empty_like(mine);
    gather(group, all, mine.to(bucket.layout().device));
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      if (all[rank].equal(all[0])) continue;
      const auto first = all[rank].ne(all[0]).nonzero()[0].item<std::int64_t>();
      throw MismatchError(
          concat("After the hook '", inner().traits().name, "' in iteration ", bucket.iteration(), ", bucket ",
                 bucket.index(), ": rank ", rank, " holds other bits than rank 0, first in the gradient of '",
                 bucket.parameter_names()[static_cast<std::size_t>(first)], "' (noticed on rank ", group.rank(), ")."));
    }
  }

  static void gather(ProcessGroup& group, std::vector<at::Tensor>& all, const at::Tensor& mine) {
    for (at::Tensor& one : all) one = one.to(mine.device());
    group.all_gather({all}, {mine})->wait();
    for (at::Tensor& one : all) one = one.to(at::kCPU);
  }
};

}  // namespace

Future noop_hook(const std::shared_ptr<ProcessGroup>&, GradBucket& bucket) { return completed_future(bucket.buffer()); }

std::shared_ptr<CommHook> make_noop_hook() {
  return make_comm_hook(std::shared_ptr<ProcessGroup>(), noop_hook,
                        {.name = "noop", .parallel_safe = true, .single_collective = true});
}

std::shared_ptr<CommHook> make_logging_hook(std::shared_ptr<CommHook> inner, BucketSink sink) {
  return std::make_shared<LoggingHook>(inner, std::move(sink));
}

std::shared_ptr<CommHook> make_checking_hook(std::shared_ptr<CommHook> inner) {
  return std::make_shared<CheckingHook>(inner);
}

}  // namespace gradwire
