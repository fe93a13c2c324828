// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The one file that includes headers of CUDA and NCCL. Compiled where libtorch has CUDA, and run by `make gpu-check`
// alone: the project's other tests need no GPU.
#ifndef USE_C10D_NCCL
#define USE_C10D_NCCL
#endif
#include <atomic>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>

#include "gradwire/base/environment.h"
#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/c10d/nccl_internal.h"

namespace gradwire::internal {
namespace {

class Nccl final : public c10d::ProcessGroupNCCL {
 public:
  Nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, c10::intrusive_ptr<Options> options)
      : ProcessGroupNCCL(store, rank, size, std::move(options)) {
    // A failed call ends the communicator; the error reaches who waits, and the process goes on.
    if (!environment("TORCH_NCCL_ASYNC_ERROR_HANDLING") && !blockingWait_) asyncErrorHandling_ = c10d::CleanUpOnly;
  }
  ~Nccl() override {
    if (ended_) return;
    try {
      ProcessGroupNCCL::shutdown();
    } catch (const std::exception& problem) {
      log::warn(concat("nccl: the end of a communicator: ", problem.what()));
    }
  }

  void abort() override {
    ended_ = true;
    ProcessGroupNCCL::abort();
  }
  void shutdown() override {
    ended_ = true;
    ProcessGroupNCCL::shutdown();
  }

 protected:
  void terminateProcess(const std::string& what) override { log::error(concat("nccl: ", what)); }

 private:
  std::atomic<bool> ended_{false};
};

}  // namespace

bool nccl_is_built() noexcept { return true; }

void require_nccl() {}

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            Milliseconds timeout, c10::Device device) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  auto engine = c10::make_intrusive<Nccl>(store, rank, size, std::move(options));
  engine->setBoundDeviceId(device);
  engine->eagerConnectSingleDevice(device);
  return engine;
}

}  // namespace gradwire::internal
