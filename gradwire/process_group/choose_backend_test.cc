// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Which backend and which device a rank gets; none of it needs a device.
#include "gradwire/process_group/choose_backend_internal.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "gradwire/base/error.h"
#include "gradwire/process_group/backend_names.h"
#include "gradwire/process_group/c10d/nccl_internal.h"
#include "gradwire/process_group/init.h"
#include "gradwire/store/hash_store.h"

namespace gradwire::choose_backend_test {
namespace {

using internal::choose_backend;
using internal::choose_cuda_device;
using Device = c10::Device;

const Device kCpu{c10::kCPU};
const Device kFirst{c10::kCUDA, 0};
const Device kSecond{c10::kCUDA, 1};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

template <class Error, class Action>
std::string error_of(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(ChooseBackend, AutoGoesByDeviceAndByHostsAndSaysWhy) {
  EXPECT_EQ(choose_backend("auto", {}, true).name, "shm");
  EXPECT_EQ(choose_backend("auto", kCpu, true).why, "all ranks are on one host");
  EXPECT_EQ(choose_backend("auto", {}, false).name, "hybrid");
  EXPECT_EQ(choose_backend("auto", kCpu, false).why, "the ranks are on several hosts");
  for (const bool one_host : {true, false}) {
    EXPECT_EQ(choose_backend("auto", kSecond, one_host).name, "nccl");
    EXPECT_EQ(choose_backend("auto", kSecond, one_host).why, "the tensors are on cuda:1");
  }
}

TEST(ChooseBackend, ANameIsTakenWhereItServesTheDevice) {
  for (const std::string& name : backend_names()) {
    if (name == "auto") continue;
    EXPECT_EQ(choose_backend(name, {}, true).name, name);
    EXPECT_EQ(choose_backend(name, {}, true).why, "it was asked for");
    const Device fits = name == "nccl" ? kFirst : kCpu;
    const Device other = name == "nccl" ? kCpu : kFirst;
    EXPECT_EQ(choose_backend(name, fits, true).name, name);
    const std::string error = error_of<InvalidArgument>([&] { choose_backend(name, other, true); });
    EXPECT_TRUE(has(error, "the backend '" + name + "' does not serve tensors on")) << error;
  }
  const std::string error = error_of<InvalidArgument>([] { choose_backend("auto", Device{c10::kMeta}, true); });
  EXPECT_TRUE(has(error, "device_id is meta")) << error;
}

TEST(ChooseCudaDevice, TheNamedOneElseLocalRankElseTheRank) {
  EXPECT_EQ(choose_cuda_device(kSecond, 0, 0, 2), kSecond);
  EXPECT_EQ(choose_cuda_device({}, 1, 0, 2), kSecond);
  EXPECT_EQ(choose_cuda_device(Device{c10::kCUDA}, 1, 0, 2), kSecond);
  EXPECT_EQ(choose_cuda_device({}, {}, 3, 2), kSecond);
  EXPECT_TRUE(has(error_of<InvalidArgument>([] { choose_cuda_device(kCpu, {}, 0, 2); }), "serves CUDA devices"));
  EXPECT_TRUE(has(error_of<InvalidArgument>([] { choose_cuda_device(kSecond, {}, 0, 1); }), "by its device_id"));
  EXPECT_TRUE(has(error_of<InvalidArgument>([] { choose_cuda_device({}, 1, 5, 1); }), "by LOCAL_RANK"));
  EXPECT_TRUE(has(error_of<ResourceError>([] { choose_cuda_device({}, 0, 0, 0); }), "no CUDA device"));
}

// Where the build or the machine has no CUDA, asking for it is an error at once, on each rank by itself.
TEST(ChooseBackend, WithoutCudaNcclIsAnErrorThatSaysWhatToDo) {
  const auto names = backend_names();
  EXPECT_NE(std::find(names.begin(), names.end(), "nccl"), names.end());
  if (internal::nccl_is_built()) GTEST_SKIP() << "this build has NCCL";
  for (const char* name : {"nccl", "auto"}) {
    const std::string error = error_of<UnsupportedError>(
        [&] { make_process_group(name, std::make_shared<HashStore>(), 0, 2, kDefaultTimeout, kFirst); });
    EXPECT_TRUE(has(error, "its torch has no CUDA") && has(error, "GRADWIRE_CUDA=ON")) << error;
  }
}

}  // namespace
}  // namespace gradwire::choose_backend_test
