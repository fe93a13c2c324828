// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The end of an exchange: what is worked out when, and what the ends get.
#include "gradwire/compress/mean_delivery_internal.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "gradwire/base/strings.h"

namespace gradwire::compress::mean_delivery_test {
namespace {

using Floats = std::vector<float>;

// Writes down every call. The mean of a value is its number times ten, unless it is `poison`, and half of a value was
// delivered.
class RecordedDelivery final : public ExchangeEnds {
 public:
  RecordedDelivery(bool takes, bool keeps) : takes_(takes), keeps_(keeps) {}

  std::span<float> mean() noexcept override { return mean_; }
  std::span<const float> values(std::size_t first, std::span<float> room) override {
    calls += concat(" values", first);
    for (std::size_t i = 0; i < room.size(); ++i) room[i] = static_cast<float>(first + i);
    return room;
  }
  bool keeps_values() const noexcept override { return keeps_; }
  bool takes_delivered() const noexcept override { return takes_; }
  void deliver(std::size_t first, std::span<const float> values, std::span<const float> delivered) override {
    calls += concat(" deliver", first);
    EXPECT_EQ(mean_[first], static_cast<float>(10 * first)) << "the mean comes first";
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(delivered[i], values[i] / 2);
  }

  void run() {
    Workspace workspace;
    Floats room;
    deliver_mean(
        *this, workspace, workspace.decoded,
        [](const auto& body) {
          body(Block{0, 2});
          body(Block{2, 3});
        },
        [&](const Block& block, std::span<float> mean) {
          const bool in_place = mean.data() == mean_.data() + block.begin;
          calls += concat(in_place ? " mean" : " try", block.begin);
          for (std::size_t i = 0; i < mean.size(); ++i) mean[i] = static_cast<float>(10 * (block.begin + i));
          if (block.begin == poisoned) mean[0] = std::numeric_limits<float>::infinity();
        },
        [&](const Block& block, std::span<const float> values, std::span<const float> mean) {
          EXPECT_EQ(mean.data(), mean_.data() + block.begin);
          room.assign(values.begin(), values.end());
          for (float& value : room) value /= 2;
          return std::span<const float>(room);
        });
  }

  std::string calls;
  std::size_t poisoned = 99;  // the block whose mean is not finite

 private:
  const bool takes_;
  const bool keeps_;
  Floats mean_ = Floats(5, 77);
};

TEST(MeanDelivery, WorksEachBlockOutOnceWhenNobodyAsksWhatWasDelivered) {
  for (const bool keeps : {false, true}) {
    RecordedDelivery ends(/*takes=*/false, keeps);
    ends.run();
    EXPECT_EQ(ends.calls, " mean0 mean2");
  }
}

TEST(MeanDelivery, WritesTheMeanFirstWhereTheValuesStay) {
  RecordedDelivery ends(/*takes=*/true, /*keeps=*/true);
  ends.run();
  EXPECT_EQ(ends.calls, " mean0 mean2 values0 deliver0 values2 deliver2");
}

TEST(MeanDelivery, AsksForTheValuesOfABlockBeforeItsMeanIsWritten) {
  RecordedDelivery ends(/*takes=*/true, /*keeps=*/false);
  ends.run();
  EXPECT_EQ(ends.calls, " try0 try2 values0 mean0 deliver0 values2 mean2 deliver2");
}

TEST(MeanDelivery, DeliversNothingWhenAnyBlockIsNotFinite) {
  for (const std::size_t poisoned : {0, 2}) {
    RecordedDelivery stays(/*takes=*/true, /*keeps=*/true);
    stays.poisoned = poisoned;
    stays.run();
    EXPECT_EQ(stays.calls, " mean0 mean2");
    RecordedDelivery goes(/*takes=*/true, /*keeps=*/false);
    goes.poisoned = poisoned;
    goes.run();
    EXPECT_EQ(goes.calls, " try0 try2 mean0 mean2");
  }
}

}  // namespace
}  // namespace gradwire::compress::mean_delivery_test
