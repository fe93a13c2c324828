// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// copy_from_peer() copies what it is asked for and no more, at every alignment and by every way, for every set of
// kernels that this processor can run.
#include "gradwire/kernels/copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gradwire/kernels/dispatch.h"
#include "gradwire/kernels/dispatch_internal.h"

namespace gradwire::kernels {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kResults[] = {0, 3 * kMiB, 100 * kMiB};  // side by side, as copy_bytes() does, streamed

std::vector<unsigned char> numbered(std::size_t size) {
  std::vector<unsigned char> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<unsigned char>(i * 7 + i / 251);
  return bytes;
}

class CopyFromPeerTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { select(GetParam()); }
  void TearDown() override { select(""); }
};

INSTANTIATE_TEST_SUITE_P(Kernels, CopyFromPeerTest, testing::ValuesIn(available()),
                         [](const auto& instance) { return instance.param; });

TEST_P(CopyFromPeerTest, CopiesAtEveryAlignment) {
  const std::vector<unsigned char> source = numbered(60'000);
  for (const std::size_t bytes : {0, 1, 4096, 16'383, 16'384, 16'385, 16'384 + 63, 33'000, 50'000}) {
    for (std::size_t from = 0; from < 64; from += 7) {
      for (std::size_t to = 0; to < 64; to += 9) {
        for (const std::size_t result : kResults) {
          std::vector<unsigned char> copied(60'000, 0xee);
          std::vector<unsigned char> expected = copied;
          std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(from), bytes,
                      expected.begin() + static_cast<std::ptrdiff_t>(to));
          copy_from_peer(copied.data() + to, source.data() + from, bytes, result);
          ASSERT_EQ(copied, expected) << bytes << " bytes from " << from << " to " << to << " of " << result;
          copy_from_peer(copied.data() + to, source.data() + from, bytes, result, Store::cached);
          ASSERT_EQ(copied, expected) << bytes << " bytes from " << from << " to " << to << " of " << result;
        }
      }
    }
  }
}

TEST_P(CopyFromPeerTest, TheSelectedSetIsTheOneThatRuns) {
  std::vector<unsigned char> copied(40'000);
  const std::vector<unsigned char> source = numbered(40'000);
  note_run("nothing");
  copy_from_peer(copied.data(), source.data(), source.size(), source.size());
  std::string ran(last_run());
  std::transform(ran.begin(), ran.end(), ran.begin(), [](unsigned char c) { return std::tolower(c); });
  EXPECT_EQ(ran, GetParam() == "scalar" ? "nothing" : GetParam());
}

TEST_P(CopyFromPeerTest, TheSameAddressAndNoAddressAreFine) {
  std::vector<unsigned char> buffer = numbered(40'000);
  copy_from_peer(buffer.data(), buffer.data(), buffer.size(), buffer.size());
  EXPECT_EQ(buffer, numbered(40'000));
  copy_from_peer(nullptr, nullptr, 0, 0);
}

}  // namespace
}  // namespace gradwire::kernels
