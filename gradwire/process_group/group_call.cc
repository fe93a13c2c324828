// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/process_group/group_call.h"

namespace gradwire {
namespace {

using Visit = std::function<void(const at::Tensor&)>;

void visit_all(const at::Tensor& tensor, const Visit& visit) { visit(tensor); }

template <class T>
void visit_all(const std::vector<T>& list, const Visit& visit) {
  for (const T& element : list) visit_all(element, visit);
}

}  // namespace

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

void for_each_tensor(const GroupCall& call, const Visit& visit) {
  const auto visit_lists = [&](const auto&... lists) { (visit_all(lists, visit), ...); };
  std::visit([&](const auto& one) { std::apply(visit_lists, one.read_first()); }, call);
}

Tensors written_by(const GroupCall& call) {
  Tensors written;
  const Visit add = [&](const at::Tensor& tensor) { written.push_back(tensor); };
  const auto visit_lists = [&](const auto&... lists) { (visit_all(lists, add), ...); };
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
