// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/group_call.h"

namespace gradwire {

const char* name_of(const GroupCall& call) {
  return std::visit([](const auto& one) { return one.kName; }, call);
}

CollectiveOptions* options_of(GroupCall& call) {
  return std::visit(
      [](auto& one) -> CollectiveOptions* {
        if constexpr (requires { one.options; }) {
          return &one.options;
        } else {
          return nullptr;
        }
      },
      call);
}

Tensors written_by(const GroupCall& call) {
  Tensors written;
  const auto add = [&](const at::Tensor& tensor) { written.push_back(tensor); };
  const auto visit_lists = [&](const auto&... lists) { (internal::visit_tensors(lists, add), ...); };
  std::visit([&](const auto& one) { std::apply(visit_lists, one.written()); }, call);
  return written;
}

std::shared_ptr<Work> call_on(ProcessGroup& group, GroupCall& call, Milliseconds timeout) {
  CollectiveOptions* const options = options_of(call);
  if (options != nullptr && options->timeout.count() == 0) options->timeout = timeout;
  if (options == nullptr && group.timeout() != timeout) group.set_timeout(timeout);
  return std::visit([&](const auto& one) { return one.on(group); }, call);
}

}  // namespace gradwire
