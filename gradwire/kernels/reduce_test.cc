// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// reduce() against the oracle, for every set of kernels that this processor can run.
#include "gradwire/kernels/reduce.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <set>
#include <utility>

#include "gradwire/base/strings.h"
#include "gradwire/kernels/dispatch.h"
#include "gradwire/kernels/oracle_internal.h"

namespace gradwire::kernels {
namespace {

using oracle::first_difference;
using oracle::random_elements;

constexpr std::uint8_t kGuard = 0xa5;
constexpr std::size_t kGuardBytes = 64;

// Memory that starts `offset` bytes after a multiple of 64 and has guard bytes around it.
class Buffer {
 public:
  Buffer(std::size_t bytes, std::size_t offset) : bytes_(bytes), offset_(offset) {
    const std::size_t total = (kGuardBytes + offset + bytes + kGuardBytes + 63) / 64 * 64;
    memory_.reset(static_cast<std::uint8_t*>(std::aligned_alloc(64, total)));
    std::memset(memory_.get(), kGuard, total);
  }
  Buffer(const std::vector<std::uint8_t>& content, std::size_t offset) : Buffer(content.size(), offset) {
    std::copy(content.begin(), content.end(), data());
  }
  std::uint8_t* data() { return memory_.get() + kGuardBytes + offset_; }
  bool guards_intact() {
    const auto is_guard = [](std::uint8_t byte) { return byte == kGuard; };
    return std::all_of(memory_.get(), data(), is_guard) &&
           std::all_of(data() + bytes_, data() + bytes_ + kGuardBytes, is_guard);
  }

 private:
  struct Free {
    void operator()(std::uint8_t* memory) const { std::free(memory); }
  };
  std::size_t bytes_;
  std::size_t offset_;
  std::unique_ptr<std::uint8_t, Free> memory_;
};

// The inputs of one reduction, and the calls on them.
class Inputs {
 public:
  Inputs(DType dtype, std::size_t number, std::size_t count, std::uint32_t seed, std::size_t offset = 0)
      : dtype_(dtype), count_(count) {
    for (std::size_t s = 0; s < number; ++s) {
      add(random_elements(dtype, count, seed * 1000 + static_cast<std::uint32_t>(s)), offset);
    }
  }
  Inputs(DType dtype, const std::vector<std::vector<std::uint8_t>>& contents) : dtype_(dtype), count_(0) {
    for (const auto& content : contents) {
      count_ = content.size() / size_of(dtype);
      add(content, 0);
    }
  }
  std::vector<std::uint8_t> expect(ReduceOp op) const { return oracle::reduce(dtype_, op, views_, count_); }
  // Empty when `number` destinations, `offset` bytes off, hold `expected` and nothing beside them changed.
  std::string check(ReduceOp op, const std::vector<std::uint8_t>& expected, std::size_t number, std::size_t count,
                    const std::vector<std::size_t>& offsets, Store store) const {
    std::vector<Buffer> destinations;
    std::vector<void*> pointers;
    destinations.reserve(number);
    for (std::size_t d = 0; d < number; ++d) {
      destinations.emplace_back(count * size_of(dtype_), offsets[d % offsets.size()]);
      pointers.push_back(destinations.back().data());
    }
    reduce(dtype_, op, sources_, pointers, count, store);
    for (std::size_t d = 0; d < number; ++d) {
      const std::size_t wrong = first_difference(dtype_, destinations[d].data(), expected.data(), count);
      if (wrong != count || !destinations[d].guards_intact()) {
        return concat(name_of(dtype_), " ", name_of(op.kind), ", ", sources_.size(), " sources, destination ", d,
                      " of ", number, ", count ", count, ", ",
                      wrong != count ? concat("element ", wrong) : std::string("memory beside it"), " is wrong");
      }
    }
    return {};
  }
  const std::vector<const void*>& sources() const { return sources_; }

 private:
  void add(const std::vector<std::uint8_t>& content, std::size_t offset) {
    buffers_.push_back(std::make_unique<Buffer>(content, offset));
    views_.push_back(buffers_.back()->data());
    sources_.push_back(buffers_.back()->data());
  }

  DType dtype_;
  std::size_t count_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<const std::uint8_t*> views_;
  std::vector<const void*> sources_;
};

class ReduceTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { select(GetParam()); }
  void TearDown() override { select(""); }
};

INSTANTIATE_TEST_SUITE_P(Kernels, ReduceTest, testing::ValuesIn(available()),
                         [](const auto& instance) { return instance.param; });

// 0 to 3 vectors of the widest set, and around the edges of its blocks of four vectors.
std::set<std::size_t> edge_counts(std::size_t element) {
  std::set<std::size_t> counts;
  const std::size_t vector = std::max<std::size_t>(1, 64 / element);
  for (std::size_t count = 0; count <= std::min<std::size_t>(3 * vector, 70); ++count) counts.insert(count);
  for (const std::size_t block : {vector, 2 * vector, 3 * vector, 4 * vector, 8 * vector, 9 * vector}) {
    for (const std::size_t count : {block - 1, block, block + 1}) counts.insert(count);
  }
  return counts;
}

TEST_P(ReduceTest, EveryPairSourcesDestinationsAndEdgeCountsMatchTheOracle) {
  std::uint32_t seed = 0;
  for (const DType dtype : oracle::kDTypes) {
    const auto counts = edge_counts(size_of(dtype));
    for (const ReduceOp op : oracle::kOps) {
      if (!is_defined(op, dtype)) continue;
      for (const std::size_t number : {1, 2, 3, 5, 8}) {
        const Inputs inputs(dtype, number, *counts.rbegin(), ++seed);
        const auto expected = inputs.expect(op);
        for (const std::size_t destinations : {1, 2, 3, 8}) {
          for (const std::size_t count : counts) {
            ASSERT_EQ(inputs.check(op, expected, destinations, count, {0}, Store::cached), "");
          }
          ASSERT_EQ(inputs.check(op, expected, destinations, *counts.rbegin(), {0}, Store::streamed), "");
        }
      }
    }
  }
}

// Two sources go four pages at a time: counts around one and two such groups.
TEST_P(ReduceTest, GroupsOfPagesOfTwoSources) {
  std::uint32_t seed = 0;
  for (const DType dtype : oracle::kDTypes) {
    const std::size_t group = 4 * 4096 / size_of(dtype);
    const Inputs inputs(dtype, 2, 2 * group + 129, ++seed, 16);
    const auto expected = inputs.expect(ReduceOp::sum());
    for (const std::size_t destinations : {1, 2, 3}) {
      for (const std::size_t count : {group - 1, group, group + 1, group + 65, 2 * group - 1, 2 * group + 129}) {
        for (const Store store : {Store::cached, Store::streamed}) {
          ASSERT_EQ(inputs.check(ReduceOp::sum(), expected, destinations, count, {16}, store), "");
        }
      }
    }
  }
}

TEST_P(ReduceTest, EveryMisalignmentOfSourcesAndDestinations) {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::u8}) {
    const std::size_t count = 10 * 1024 / size_of(dtype);  // large enough for reduce() to look at alignment
    for (std::size_t offset = 0; offset < 64; ++offset) {
      const Inputs inputs(dtype, 2, count, 77, offset);
      const auto expected = inputs.expect(ReduceOp::sum());
      for (const Store store : {Store::cached, Store::streamed}) {
        const auto check = [&](std::size_t number, const std::vector<std::size_t>& offsets) {
          return inputs.check(ReduceOp::sum(), expected, number, count, offsets, store);
        };
        ASSERT_EQ(check(1, {offset}), "") << "offset " << offset;
        ASSERT_EQ(check(2, {offset}), "") << "offset " << offset;
        ASSERT_EQ(check(3, {63 - offset}), "") << "offset " << offset;
        ASSERT_EQ(check(2, {offset, (offset + 4) % 64}), "") << "offset " << offset;
      }
    }
  }
}

TEST_P(ReduceTest, DestinationsMayBeTheSources) {
  for (const DType dtype : oracle::kDTypes) {
    const std::size_t count = 20'001;
    for (const std::size_t number : {1, 2, 3, 8}) {
      for (const Store store : {Store::cached, Store::streamed}) {
        const Inputs inputs(dtype, number, count, 5);
        const auto expected = inputs.expect(ReduceOp::sum());
        std::vector<void*> destinations;
        for (const void* source : inputs.sources()) destinations.push_back(const_cast<void*>(source));
        reduce(dtype, ReduceOp::sum(), inputs.sources(), destinations, count, store);
        for (const void* destination : destinations) {
          ASSERT_EQ(first_difference(dtype, destination, expected.data(), count), count) << name_of(dtype);
        }
      }
    }
  }
}

// Many buffers go through blocks of 4096 bytes of f32: the counts lie around the edges of one and of two of them, for
// elements of any size.
TEST_P(ReduceTest, ManySourcesAndDestinations) {
  for (const DType dtype : oracle::kDTypes) {
    const std::size_t block = std::min<std::size_t>(4096 / size_of(dtype), is_floating(dtype) ? 1024 : 4096);
    for (const auto& [number, destinations] : {std::pair<std::size_t, std::size_t>{64, 64}, {30, 1}, {1, 30}}) {
      const Inputs inputs(dtype, number, 2 * block + 70, 6);
      for (const ReduceOp op : {ReduceOp::sum(), ReduceOp::product()}) {
        const auto expected = inputs.expect(op);
        for (const std::size_t count : {block - 1, block, block + 1, 2 * block + 70}) {
          ASSERT_EQ(inputs.check(op, expected, destinations, count, {0}, Store::cached), "");
        }
        ASSERT_EQ(inputs.check(op, expected, destinations, 2 * block + 70, {4}, Store::streamed), "");
      }
    }
  }
}

TEST_P(ReduceTest, EveryNumberOfSourcesAverages) {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64, DType::c64}) {
    for (std::size_t number = 1; number <= 64; ++number) {
      const Inputs inputs(dtype, number, 150, 7);
      ASSERT_EQ(inputs.check(ReduceOp::avg(), inputs.expect(ReduceOp::avg()), 1, 150, {0}, Store::cached), "");
    }
  }
}

// Bit patterns at which floating-point types change behaviour, as f32 or the type's own.
std::vector<std::uint8_t> special_values(DType dtype) {
  std::vector<std::uint8_t> bytes;
  const auto append = [&](auto bits) {
    bytes.resize(bytes.size() + sizeof(bits));
    oracle::put(bytes.data() + bytes.size() - sizeof(bits), bits);
  };
  if (dtype == DType::f32) {
    for (const std::uint32_t bits :
         {0u, 1u, 0x007fffffu, 0x00800000u, 0x00800001u, 0x3f800000u, 0x3f800001u, 0x33800000u, 0x4b7fffffu,
          0x7f7fffffu, 0x7f7ffffeu, 0x7f800000u, 0x7f800001u, 0x7fc00000u}) {
      append(bits);
      append(bits | 0x80000000u);
    }
  } else if (dtype == DType::f64) {
    for (const std::uint64_t bits :
         {0ull, 1ull, 0x000fffffffffffffull, 0x0010000000000000ull, 0x3ff0000000000000ull, 0x3ff0000000000001ull,
          0x3ca0000000000000ull, 0x7fefffffffffffffull, 0x7ff0000000000000ull, 0x7ff8000000000000ull}) {
      append(bits);
      append(bits | 0x8000000000000000ull);
    }
  } else {
    const std::uint16_t infinity = dtype == DType::f16 ? 0x7c00 : 0x7f80;
    const std::uint16_t normal = dtype == DType::f16 ? 0x0400 : 0x0080;
    const std::uint16_t one = dtype == DType::f16 ? 0x3c00 : 0x3f80;
    for (const int bits : {0, 1, 2, 3, normal - 1, +normal, normal + 1, one - 1, +one, one + 1, infinity - 1,
                           infinity - 2, +infinity, infinity + 1, 0x7fff}) {
      append(static_cast<std::uint16_t>(bits));
      append(static_cast<std::uint16_t>(bits | 0x8000));
    }
  }
  return bytes;
}

TEST_P(ReduceTest, EveryTripleOfSpecialValues) {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
    const auto values = special_values(dtype);
    const std::size_t size = size_of(dtype);
    const std::size_t number = values.size() / size;
    std::vector<std::vector<std::uint8_t>> columns(3);
    const auto append = [&](std::vector<std::uint8_t>& column, std::size_t index) {
      column.insert(column.end(), values.begin() + static_cast<long>(index * size),
                    values.begin() + static_cast<long>((index + 1) * size));
    };
    for (std::size_t a = 0; a < number; ++a) {
      for (std::size_t b = 0; b < number; ++b) {
        for (std::size_t c = 0; c < number; ++c) {
          append(columns[0], a);
          append(columns[1], b);
          append(columns[2], c);
        }
      }
    }
    const std::size_t count = number * number * number;
    for (const ReduceOp op : oracle::kOps) {
      if (!is_defined(op, dtype)) continue;
      const Inputs three(dtype, columns);
      ASSERT_EQ(three.check(op, three.expect(op), 1, count, {0}, Store::cached), "");
      const Inputs two(dtype, {columns[1], columns[2]});
      ASSERT_EQ(two.check(op, two.expect(op), 2, count, {0}, Store::cached), "");
      const Inputs one(dtype, {columns[2]});
      ASSERT_EQ(one.check(op, one.expect(op), 1, count, {0}, Store::cached), "");
    }
  }
}

TEST_P(ReduceTest, RandomBytesGiveTheBitsOfTheScalarKernels) {
  for (const DType dtype : oracle::kDTypes) {
    const std::size_t count = 20011;
    std::mt19937 random(8);
    std::vector<std::vector<std::uint8_t>> contents(3, std::vector<std::uint8_t>(count * size_of(dtype)));
    for (auto& content : contents) {
      for (auto& byte : content) byte = static_cast<std::uint8_t>(random());
    }
    const Inputs inputs(dtype, contents);
    for (const ReduceOp op : oracle::kOps) {
      if (!is_defined(op, dtype)) continue;
      std::vector<std::uint8_t> expected(count * size_of(dtype));
      void* const destination = expected.data();
      select("scalar");
      reduce(dtype, op, inputs.sources(), {&destination, 1}, count);
      select(GetParam());
      ASSERT_EQ(inputs.check(op, expected, 1, count, {0}, Store::cached), "");
    }
  }
}

TEST_P(ReduceTest, StreamedStoresFillLargeBuffers) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    const std::size_t count = (std::size_t{1} << 18) + 3;
    const Inputs inputs(dtype, 2, count, 9);
    const auto expected = inputs.expect(ReduceOp::avg());
    ASSERT_EQ(inputs.check(ReduceOp::avg(), expected, 2, count, {20}, Store::streamed), "");
  }
}

TEST_P(ReduceTest, NothingToDoTouchesNothing) {
  Buffer destination(0, 0);
  void* const pointer = destination.data();
  const void* const source = nullptr;
  reduce(DType::f32, ReduceOp::sum(), {&source, 1}, {&pointer, 1}, 0, Store::streamed);
  EXPECT_TRUE(destination.guards_intact());
}

}  // namespace
}  // namespace gradwire::kernels
