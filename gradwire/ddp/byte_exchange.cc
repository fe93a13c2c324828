// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <ATen/Functions.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "gradwire/ddp/byte_exchange_internal.h"
#include "gradwire/ddp/replica_sync_internal.h"

namespace gradwire::internal {
namespace {

// Ranks that only pass bytes on need no more memory than this.
constexpr std::size_t kChunkBytes = std::size_t{25} << 20;

std::vector<std::vector<std::int64_t>> gather_sizes(ProcessGroup& group, const std::string& bytes) {
  return gather_integers(group, {static_cast<std::int64_t>(bytes.size())});
}

}  // namespace

at::Tensor tensor_of_text(std::string text) {
  auto keep = std::make_shared<std::string>(std::move(text));
  return at::from_blob(
      keep->data(), {static_cast<std::int64_t>(keep->size())}, [keep](void*) mutable { keep.reset(); },
      at::TensorOptions(at::kByte));
}

std::string text_of_tensor(const at::Tensor& bytes) {
  return {static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()};
}

std::string transfer_bytes(ProcessGroup& group, std::string bytes, std::size_t size, int owner, int to) {
  std::string received;
  for (std::size_t first = 0; first < size; first += kChunkBytes) {
    const std::size_t length = std::min(kChunkBytes, size - first);
    at::Tensor chunk = group.rank() == owner
                           ? at::from_blob(bytes.data() + first, {static_cast<std::int64_t>(length)}, at::kByte)
                           : at::empty({static_cast<std::int64_t>(length)}, at::kByte);
    broadcast_values(group, {chunk}, owner);
    if (group.rank() == owner || (to != kAllRanks && group.rank() != to)) continue;
    received.append(static_cast<const char*>(chunk.const_data_ptr()), length);
  }
  const bool keeps = group.rank() == owner && (to == kAllRanks || to == owner);
  return keeps ? std::move(bytes) : received;
}

std::vector<std::string> gather_bytes(ProcessGroup& group, std::string bytes, int to) {
  const auto sizes = gather_sizes(group, bytes);
  std::vector<std::string> all(sizes.size());
  for (int owner = 0; owner < group.size(); ++owner) {
    const auto place = static_cast<std::size_t>(owner);
    std::string mine = owner == group.rank() ? std::move(bytes) : std::string();
    all[place] = transfer_bytes(group, std::move(mine), static_cast<std::size_t>(sizes[place][0]), owner, to);
  }
  return all;
}

std::string broadcast_bytes(ProcessGroup& group, std::string bytes, int owner) {
  const std::int64_t size = gather_sizes(group, bytes)[static_cast<std::size_t>(owner)][0];
  return transfer_bytes(group, std::move(bytes), static_cast<std::size_t>(size), owner, kAllRanks);
}

std::string give_bytes(ProcessGroup& group, std::string bytes, int owner, const std::vector<int>& receivers) {
  const std::int64_t size = gather_sizes(group, bytes)[static_cast<std::size_t>(owner)][0];
  const bool receives = std::find(receivers.begin(), receivers.end(), group.rank()) != receivers.end();
  if (size == 0 || (!receives && group.rank() != owner)) return "";
  if (receives) {
    const at::Tensor message = at::empty({size}, at::TensorOptions(at::kByte));
    group.recv({message}, owner)->wait();
    return text_of_tensor(message);
  }
  const at::Tensor message = tensor_of_text(std::move(bytes));
  for (const int receiver : receivers) group.send({message}, receiver)->wait();
  return "";
}

}  // namespace gradwire::internal
