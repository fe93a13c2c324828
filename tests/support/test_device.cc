// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/test_device.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "gradwire/base/environment.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "tests/support/fake_device.h"

namespace gradwire::testing {

bool on_gpu() {
  static const bool gpu = [] {
    const std::string asked = environment("GRADWIRE_TEST_DEVICE").value_or("fake");
    if (asked != "fake" && asked != "cuda")
      throw InvalidArgument(concat("GRADWIRE_TEST_DEVICE is '", asked, "'; it may be fake or cuda"));
    return asked == "cuda";
  }();
  return gpu;
}

int device_count() {
  return on_gpu() ? c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).deviceCount() : kFakeDevices;
}

c10::Device test_device(int rank) {
  if (!on_gpu()) return fake_device(rank);
  const int devices = device_count();
  if (devices == 0) throw ResourceError("GRADWIRE_TEST_DEVICE=cuda, and torch finds no GPU");
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(rank % devices)};
}

std::string races() { return on_gpu() ? "" : join(take_fake_races(), "\n"); }

std::optional<std::size_t> take_bytes_to_host() {
  if (on_gpu()) return std::nullopt;
  return take_fake_bytes_to_host();
}

c10::Stream current_stream(const c10::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

c10::Stream new_stream(const c10::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getNewStream(device);
}

}  // namespace gradwire::testing
