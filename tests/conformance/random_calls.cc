// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/random_calls.h"

#include <iterator>

#include "gradwire/base/strings.h"

namespace gradwire::testing {
namespace {

std::vector<void*> writable(std::vector<Bytes>& buffers) {
  std::vector<void*> list;
  for (Bytes& buffer : buffers) list.push_back(buffer.data());
  return list;
}

}  // namespace

std::size_t RandomCalls::draw(Random& random) {
  kind_ = random.below(std::size(kKinds));
  dtype_ = kAllDTypes[random.below(11)];
  do {
    op_ = kAllOps[random.below(9)];
  } while (!is_defined(op_, dtype_));
  // Small counts as often as large ones.
  count_ = random.below((largest_ >> random.below(12)) + 2);
  root_ = static_cast<int>(random.below(ranks()));
  seed_ = random.next() % 1'000'000;
  tag_ = {static_cast<std::uint32_t>(random.below(1000)), static_cast<std::uint16_t>(random.below(50)), 0};
  return kind_;
}

void RandomCalls::make() {
  SCOPED_TRACE(concat(kKinds[kind_], " ", name_of(dtype_), " ", name_of(op_.kind), " count ", count_, " root ", root_));
  switch (kind_) {
    case 0:
      return channel_.barrier(with_tag(tag_));
    case 1:
      return broadcast();
    case 2:
      return all_reduce();
    case 3:
      return reduce();
    case 4:
      return all_gather();
    case 5:
      return gather_and_scatter();
    case 6:
      return reduce_scatter();
    default:
      return all_to_all();
  }
}

std::vector<Bytes> RandomCalls::inputs() const {
  std::vector<Bytes> all = make_inputs(dtype_, count_, context_.size(), seed_);
  if (dtype_ == DType::boolean) {
    for (Bytes& input : all) {
      for (std::byte& value : input) value &= std::byte{1};
    }
  }
  return all;
}

void RandomCalls::expect(const Bytes& actual, const Bytes& expected) const {
  EXPECT_EQ(difference(actual.data(), expected, dtype_), "");
}

void RandomCalls::broadcast() {
  std::vector<Bytes> all = inputs();
  channel_.broadcast(all[own()].data(), count_, dtype_, root_, with_tag(tag_));
  expect(all[own()], inputs()[static_cast<std::size_t>(root_)]);
}

void RandomCalls::all_reduce() {
  Bytes data = inputs()[own()];
  channel_.all_reduce(data.data(), count_, dtype_, op_, with_tag(tag_));
  expect(data, combine(dtype_, op_, inputs()));
}

void RandomCalls::reduce() {
  const Bytes input = inputs()[own()];
  Bytes output(input.size());
  channel_.reduce(input.data(), output.data(), count_, dtype_, op_, root_, with_tag(tag_));
  if (is_root()) expect(output, combine(dtype_, op_, inputs()));
}

void RandomCalls::all_gather() {
  const std::vector<Bytes> all = inputs();
  std::vector<Bytes> received(ranks(), Bytes(all[0].size()));
  const std::vector<void*> outputs = writable(received);
  channel_.all_gather(all[own()].data(), outputs, count_, dtype_, with_tag(tag_));
  for (std::size_t r = 0; r < ranks(); ++r) expect(received[r], all[r]);
}

void RandomCalls::gather_and_scatter() {
  const std::vector<Bytes> all = inputs();
  std::vector<Bytes> collected(ranks(), Bytes(all[0].size()));
  channel_.gather(all[own()].data(), is_root() ? writable(collected) : std::vector<void*>{}, count_, dtype_, root_,
                  with_tag(tag_));
  Bytes back(all[0].size());
  std::vector<const void*> parts;
  for (std::size_t r = 0; is_root() && r < ranks(); ++r) parts.push_back(collected[ranks() - 1 - r].data());
  channel_.scatter(parts, back.data(), count_, dtype_, root_, with_tag(tag_));
  expect(back, all[ranks() - 1 - own()]);
}

void RandomCalls::reduce_scatter() {
  const std::vector<Bytes> all = inputs();
  const std::vector<const void*> same(ranks(), all[own()].data());
  Bytes output(all[0].size());
  channel_.reduce_scatter(same, output.data(), count_, dtype_, op_, with_tag(tag_));
  expect(output, combine(dtype_, op_, all));
}

void RandomCalls::all_to_all() {
  const std::vector<Bytes> all = inputs();
  std::vector<Bytes> received(ranks(), Bytes(all[0].size()));
  std::vector<ConstSlice> sent(ranks(), ConstSlice{all[own()].data(), count_});
  std::vector<Slice> slots;
  for (Bytes& slot : received) slots.push_back({slot.data(), count_});
  channel_.all_to_all(sent, slots, dtype_, with_tag(tag_));
  for (std::size_t r = 0; r < ranks(); ++r) expect(received[r], all[r]);
}

}  // namespace gradwire::testing
