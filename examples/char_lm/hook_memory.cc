// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/char_lm/hook_memory.h"

#include <torch/serialize.h>

#include <algorithm>
#include <sstream>

#include "examples/char_lm/ranks.h"
#include "gradwire/base/strings.h"

namespace char_lm {
namespace {

using gradwire::concat;
using gradwire::HookState;

std::string to_bytes(const HookState& state) {
  torch::serialize::OutputArchive archive;
  gradwire::save_hook_state(state, archive);
  std::ostringstream out;
  archive.save_to(out);
  return out.str();
}

HookState from_bytes(const std::string& bytes) {
  std::istringstream in(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(in);
  return gradwire::load_hook_state(archive);
}

}  // namespace

HookMemory gather_memory(const Options& options, const Replica& replica, gradwire::ProcessGroup& group) {
  const ReplicaState state = replica.state();
  HookMemory memory{options.hook, state.bucket_order, gradwire::shared_part(state.hook), {}};
  for (const std::string& bytes : gather_bytes(group, to_bytes(gradwire::local_part(state.hook)))) {
    memory.local.push_back(from_bytes(bytes));
  }
  return memory;
}

std::string restore_memory(const HookMemory& memory, const Options& options, Replica& replica,
                           gradwire::ProcessGroup& group) {
  ReplicaState state{memory.bucket_order, {}};
  if (memory.hook != options.hook) {
    replica.restore(state, /*with_hook=*/false);
    return concat("The checkpoint was saved under the hook ", memory.hook, "; ", options.hook,
                  " begins with an empty memory.");
  }
  const bool same_world = memory.local.size() == static_cast<std::size_t>(group.size());
  const HookState local =
      same_world ? memory.local[static_cast<std::size_t>(group.rank())] : gradwire::average_local(memory.local);
  state.hook = gradwire::join_parts(memory.shared, local);
  replica.restore(state, /*with_hook=*/true);
  if (same_world || local.empty()) return {};
  return concat("Each rank takes the mean of what the hook remembered on ", memory.local.size(), " ranks.");
}

}  // namespace char_lm
