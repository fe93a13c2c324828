// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "bench/gradwire_worker.h"

#include <cstring>
#include <memory>
#include <vector>

#include "bench/local_ranks.h"
#include "bench/worker.h"
#include "gradwire/backend/registry.h"

namespace gradwire::bench {
namespace {

class AllReduceSubject {
 public:
  AllReduceSubject(Channel& channel, DType dtype, ReduceOp op) : channel_(channel), dtype_(dtype), op_(op) {}

  void prepare(const Measurement& what) {
    count_ = what.bytes / size_of(dtype_);
    bytes_ = what.bytes;
    allocation_ = {};
    private_.clear();
    if (what.variant == "in-place") {
      allocation_ = channel_.allocate(what.bytes, {});
      data_ = allocation_.data.get();
    } else {
      private_.resize(what.bytes);
      data_ = reinterpret_cast<std::byte*>(private_.data());
    }
  }
  void refill() { std::memset(data_, 0, bytes_); }
  void barrier() { channel_.barrier({}); }
  void run() { channel_.all_reduce(data_, count_, dtype_, op_, {}); }

 private:
  Channel& channel_;
  const DType dtype_;
  const ReduceOp op_;
  std::size_t count_ = 0;
  std::size_t bytes_ = 0;
  std::vector<char> private_;
  Allocation allocation_;
  std::byte* data_ = nullptr;
};

void serve_rank(const WorkerOptions& options, const std::shared_ptr<Store>& store, int rank) {
  if (options.pin) pin_to_processor(rank);
  const auto backend = make_backend(options.backend, {store, rank, options.world});
  AllReduceSubject subject(backend->channel(), options.dtype, options.op);
  serve(options.socket, options.contestant, rank, subject_of(subject));
}

}  // namespace

void run_gradwire_worker(const WorkerOptions& options) {
  serve_local_ranks(options, [&](const std::shared_ptr<Store>& store, int rank) { serve_rank(options, store, rank); });
}

}  // namespace gradwire::bench
