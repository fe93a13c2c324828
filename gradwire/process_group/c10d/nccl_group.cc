// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which device a rank has, and NCCL for it beside a group for the CPU.
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "gradwire/base/environment.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/c10d/c10d_error_internal.h"
#include "gradwire/process_group/c10d/c10d_store.h"
#include "gradwire/process_group/c10d/nccl_internal.h"
#include "gradwire/process_group/device_group_internal.h"
#include "gradwire/process_group/make_group_internal.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire::internal {
namespace {

constexpr long kMostLocalRanks = 1 << 20;

int count_cuda_devices() {
  const auto* cuda = c10::impl::device_guard_impl_registry[static_cast<std::size_t>(c10::DeviceType::CUDA)].load();
  return cuda == nullptr ? 0 : cuda->deviceCount();
}

std::shared_ptr<ProcessGroup> make_engine_group(const std::shared_ptr<Store>& store, int rank, int size,
                                                Milliseconds timeout, c10::Device device) {
  c10::intrusive_ptr<c10d::Backend> engine;
  try {
    engine = make_nccl(store_to_c10d(std::make_shared<PrefixStore>("engine", store)), rank, size, timeout, device);
  } catch (...) {
    const std::string what = concat("nccl: rank ", rank, " of ", size, ": connecting on ", device);
    std::rethrow_exception(error_from_c10d(what, std::current_exception(), false));
  }
  FromC10dOptions options;
  options.store = std::make_shared<PrefixStore>("group", store);
  auto group = from_c10d(std::move(engine), options);
  group->set_timeout(timeout);
  return group;
}

}  // namespace

c10::Device choose_cuda_device(const std::optional<c10::Device>& asked, const std::optional<long>& local_rank, int rank,
                               int devices) {
  if (asked && !asked->is_cuda())
    throw InvalidArgument(concat("nccl: the device of rank ", rank, " is ", *asked, "; NCCL serves CUDA devices"));
  if (devices == 0) {
    throw ResourceError(concat("nccl: rank ", rank,
                               " finds no CUDA device on its machine; use the backend 'auto' with tensors on the CPU"));
  }
  const bool named = asked && asked->has_index();
  const long index = named ? asked->index() : local_rank.value_or(rank % devices);
  if (index < devices) return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)};
  throw InvalidArgument(concat("nccl: rank ", rank, " is to use CUDA device ", index, ", by ",
                               named ? "its device_id" : "LOCAL_RANK", ", and its machine has ", devices,
                               "; name the device, or start fewer ranks"));
}

std::shared_ptr<ProcessGroup> make_nccl_group(Deadline deadline, const std::shared_ptr<ProcessGroup>& cpu,
                                              std::shared_ptr<Store> store, const std::optional<c10::Device>& device) {
  require_nccl();
  const c10::Device chosen = choose_cuda_device(device, environment_integer("LOCAL_RANK", 0, kMostLocalRanks),
                                                cpu->rank(), count_cuda_devices());
  log::info(concat("rank ", cpu->rank(), " of ", cpu->size(), ": NCCL on ", chosen, " for CUDA tensors, ", cpu->name(),
                   " for those on the CPU"));
  const Milliseconds timeout = cpu->timeout();
  cpu->set_timeout(timeout_until(deadline));  // of the first connection
  auto group = std::make_shared<DeviceGroup>(
      cpu, c10::DeviceType::CUDA, std::move(store),
      [chosen](const std::shared_ptr<Store>& place, int rank, int size, Milliseconds timeout) {
        return make_engine_group(place, rank, size, timeout, chosen);
      });
  cpu->set_timeout(timeout);
  group->set_timeout(timeout);
  return group;
}

}  // namespace gradwire::internal
