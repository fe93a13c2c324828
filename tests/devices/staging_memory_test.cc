// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The staging memory that a group keeps: who has it, who waits for whom, and what happens where there is none.
#include "gradwire/process_group/staging_memory_internal.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "tests/support/fake_device.h"
#include "tests/support/test_device.h"

namespace gradwire::testing::staging_memory_test {
namespace {

using internal::StagingMemory;

class Staging : public ::testing::Test {
 protected:
  std::unique_ptr<StagingMemory::Lease> lend(const c10::Stream& stream) {
    return staging_.lend(stream, [this](std::int64_t bytes) {
      ++asked_;
      return has_memory_ ? at::zeros({bytes}, at::kByte) : at::Tensor();
    });
  }

  const c10::Device device_ = fake_device(0);
  StagingMemory staging_;
  bool has_memory_ = true;
  int asked_ = 0;
};

TEST_F(Staging, OneCallAtATimeHasTheSameTwoBuffers) {
  auto first = lend(new_stream(device_));
  ASSERT_NE(first, nullptr);
  const void* const begin = first->buffer(0, at::kFloat).const_data_ptr();
  EXPECT_EQ(first->buffer(1, at::kDouble).numel() * 8, StagingMemory::kBufferBytes);
  EXPECT_EQ(first->buffer(1, at::kHalf).const_data_ptr(),
            static_cast<const std::byte*>(begin) + StagingMemory::kBufferBytes);
  EXPECT_EQ(lend(new_stream(device_)), nullptr);
  first.reset();
  const auto second = lend(new_stream(device_));
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(second->buffer(0, at::kLong).const_data_ptr(), begin);
  EXPECT_EQ(asked_, 1);
}

TEST_F(Staging, IsAskedForOnceWhereThereIsNone) {
  has_memory_ = false;
  EXPECT_EQ(lend(new_stream(device_)), nullptr);
  EXPECT_EQ(lend(new_stream(device_)), nullptr);
  EXPECT_EQ(asked_, 1);
}

// A call that has its turn before the first one may come here too, on the same thread.
TEST_F(Staging, ACallThatComesWhileTheFirstAllocatesHasMemoryOfItsOwn) {
  std::unique_ptr<StagingMemory::Lease> inner;
  const auto outer = staging_.lend(new_stream(device_), [&](std::int64_t bytes) {
    inner = lend(new_stream(device_));
    return at::zeros({bytes}, at::kByte);
  });
  EXPECT_EQ(inner, nullptr);
  EXPECT_EQ(asked_, 0);
  EXPECT_NE(outer, nullptr);
}

TEST_F(Staging, IsReleasedButNotUnderACall) {
  auto lease = lend(new_stream(device_));
  staging_.release();
  lease->buffer(1, at::kByte).fill_(1);
  lease.reset();
  staging_.release();
  EXPECT_EQ(lend(new_stream(device_)), nullptr);
  EXPECT_EQ(asked_, 1);
}

// The last copies of a call still read its buffers when the call has returned.
TEST_F(Staging, ACallOnAnotherStreamWaitsForTheCopiesOfTheCallBefore) {
  const at::Tensor copied = at::empty({8}, at::TensorOptions(device_));
  const c10::Stream one = new_stream(device_), other = new_stream(device_);
  (void)races();
  auto lease = lend(one);
  access_on(one, copied, true);
  lease.reset();
  lease = lend(other);
  access_on(other, copied, true);
  EXPECT_EQ(races(), "");
}

}  // namespace
}  // namespace gradwire::testing::staging_memory_test
