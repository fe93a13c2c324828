// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The end of an exchange: the mean is written, and the ends get what was delivered.
#pragma once

#include <span>
#include <vector>

#include "gradwire/compress/exchange_internal.h"

namespace gradwire::compress {

// Calls work_out(block, room) for all blocks, which writes the mean of a block to `room`: into mean(), where
// `has_mean`, and else into `spare`. Returns whether the whole mean is finite.
template <class ForEachBlock, class WorkOut>
bool work_out_finite(std::span<float> all, bool has_mean, std::vector<float>& spare, const ForEachBlock& for_each_block,
                     const WorkOut& work_out) {
  bool finite = true;
  for_each_block([&](const auto& block) {
    const auto mean = has_mean ? part_of(all, block) : room_in(spare, block.length);
    work_out(block, mean);
    finite = is_finite(mean) && finite;
  });
  return finite;
}

// Writes the mean of all blocks into ends.mean(). Where the ends take what was delivered, and the whole mean is finite,
// calls ends.deliver() for each block.
//   for_each_block(body)            calls body(block) for each Block of all values, each time in the same order
//   work_out(block, mean)           writes the mean of a block; called once or twice for a block, with the same result
//   delivered(block, values, mean)  returns what was delivered of this rank's `values`
// Uses `values` of the workspace, and `spare`, which work_out() must not use.
template <class ForEachBlock, class WorkOut, class Delivered>
void deliver_mean(ExchangeEnds& ends, Workspace& workspace, std::vector<float>& spare,
                  const ForEachBlock& for_each_block, const WorkOut& work_out, const Delivered& delivered) {
  const std::span<float> all = ends.mean();
  // The memory may change only when no block is in the way, so all blocks are looked at before. The mean must not
  // overwrite what the values come from: then it is worked out again.
  const bool has_mean = ends.takes_delivered() && ends.keeps_values();
  const bool delivers = ends.takes_delivered() && work_out_finite(all, has_mean, spare, for_each_block, work_out);
  for_each_block([&](const auto& block) {
    std::span<const float> values;
    if (delivers) values = values_of(ends, block, workspace);
    const auto mean = part_of(all, block);
    if (!has_mean) work_out(block, mean);
    if (delivers) ends.deliver(block.begin, values, delivered(block, values, std::span<const float>(mean)));
  });
}

}  // namespace gradwire::compress
