// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/compress/channel_transport.h"

#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"

namespace gradwire::compress {

CallOptions ChannelTransport::next_call() noexcept {
  CallOptions options{.deadline = Deadline::after(timeout_), .tag = tag_};
  ++tag_.stage;
  return options;
}

void ChannelTransport::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
  const auto ranks = static_cast<std::size_t>(size());
  if (all.size() != ranks * mine.size()) {
    throw InvalidArgument(concat("all_gather on rank ", rank(), ": ", ranks, " parts of ", mine.size(),
                                 " bytes do not fit ", all.size(), " bytes"));
  }
  std::vector<void*> outputs(ranks);
  for (std::size_t r = 0; r < ranks; ++r) outputs[r] = all.data() + r * mine.size();
  channel_.all_gather(mine.data(), outputs, mine.size(), DType::u8, next_call());
}

void ChannelTransport::all_to_all(std::span<const std::byte> to_each, std::span<std::byte> from_each) {
  const auto ranks = static_cast<std::size_t>(size());
  if (to_each.size() != from_each.size() || to_each.size() % ranks != 0) {
    throw InvalidArgument(concat("all_to_all on rank ", rank(), ": ", to_each.size(), " bytes out and ",
                                 from_each.size(), " in are not ", ranks, " equal parts each"));
  }
  const std::size_t part = to_each.size() / ranks;
  std::vector<ConstSlice> inputs(ranks);
  std::vector<Slice> outputs(ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    // What a rank would send itself is left out: its own memory has it.
    const std::size_t length = r == static_cast<std::size_t>(rank()) ? 0 : part;
    inputs[r] = {to_each.data() + r * part, length};
    outputs[r] = {from_each.data() + r * part, length};
  }
  channel_.all_to_all(inputs, outputs, DType::u8, next_call());
}

}  // namespace gradwire::compress
