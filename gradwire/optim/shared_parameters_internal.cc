// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/optim/shared_parameters_internal.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "gradwire/ddp/replica_sync_internal.h"
#include "gradwire/optim/param_groups_internal.h"

namespace gradwire::internal {
namespace {

// Small parameters travel together in messages of this size, so that a step needs no copy of all of them.
constexpr std::size_t kMessageBytes = std::size_t{25} << 20;

bool lie_in(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& buffers) {
  return std::all_of(parameters.begin(), parameters.end(), [&](const at::Tensor& parameter) {
    return std::any_of(buffers.begin(), buffers.end(),
                       [&](const at::Tensor& buffer) { return parameter.is_alias_of(buffer); });
  });
}

}  // namespace

void SharedParameters::add(std::vector<at::Tensor> parameters) {
  std::vector<at::Tensor> messages = packs_ ? pack_parameters(parameters) : parameters;
  lists_.push_back({std::move(parameters), std::move(messages)});
}

void SharedParameters::share(ProcessGroup& group, int owner) {
  if (group.size() == 1) return;
  std::vector<at::Tensor> messages;
  for (List& list : lists_) {
    if (packs_ && !lie_in(list.parameters, list.messages)) list.messages = pack_parameters(list.parameters);
    messages.insert(messages.end(), list.messages.begin(), list.messages.end());
  }
  broadcast_values(group, messages, owner, kMessageBytes);
  if (owner == group.rank()) return;
  for (const List& list : lists_) mark_changed(list.parameters);
}

}  // namespace gradwire::internal
