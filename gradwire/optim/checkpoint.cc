// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/optim/checkpoint.h"

#include <c10/util/Type.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/archive_bytes_internal.h"
#include "gradwire/ddp/byte_exchange_internal.h"
#include "gradwire/ddp/first_rank_memory.h"
#include "gradwire/ddp/hook_estimates_internal.h"
#include "gradwire/ddp/hook_state.h"
#include "gradwire/ddp/replica_sync_internal.h"
#include "gradwire/ddp/shared_error_internal.h"
#include "gradwire/hooks/replaced_state_internal.h"
#include "gradwire/optim/checkpoint_file_internal.h"
#include "gradwire/optim/zero_redundancy_optimizer.h"

namespace gradwire {
namespace {

using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;
using Texts = std::vector<std::string>;

// "'layer.weight', Float [4, 8]": what a module must have in common with a checkpoint.
Texts describe_tensors(const torch::nn::Module& module) {
  Texts texts;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    texts.push_back(tensor.defined() ? concat("'", name, "', ", tensor.scalar_type(), " ", tensor.sizes())
                                     : concat("'", name, "', undefined"));
  };
  for (const auto& item : module.named_parameters()) add(item.key(), item.value());
  for (const auto& item : module.named_buffers()) add(item.key(), item.value());
  return texts;
}

// Throws InvalidArgument for a module on several devices.
at::Device device_of(const torch::nn::Module& module) {
  std::optional<at::Device> device;
  for (const auto& tensors : {module.parameters(), module.buffers()}) {
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.defined()) continue;
      if (device.value_or(tensor.device()) != tensor.device()) {
        throw InvalidArgument(concat("a checkpoint is restored to a module on one device; this module is on ", *device,
                                     " and ", tensor.device()));
      }
      device = tensor.device();
    }
  }
  return device.value_or(at::kCPU);
}

// The class whose state the archive holds: a ZeroRedundancyOptimizer's archive is that of the plain optimizer. Empty
// where that is not known.
std::string optimizer_class(torch::optim::Optimizer& optimizer) {
  auto* const zero = dynamic_cast<ZeroRedundancyOptimizer*>(&optimizer);
  if (zero == nullptr) return c10::demangle(typeid(optimizer).name());
  if (zero->options().overlap_with_ddp) return "";
  const torch::optim::Optimizer& local = zero->local_optimizer();
  return c10::demangle(typeid(local).name());
}

std::string state_bytes(const HookState& state) {
  OutputArchive archive;
  save_hook_state(state, archive);
  return internal::archive_bytes(archive);
}

HookState state_of(const std::string& bytes) {
  InputArchive archive = internal::read_archive(bytes);
  return load_hook_state(archive);
}

// Rank 0's outcome, on all ranks: throws Kind with rank 0's sentence unless it is empty. Collective.
template <class Kind>
void share_failure(ProcessGroup& group, const std::string& problem) {
  const std::string told = internal::broadcast_bytes(group, problem, 0);
  if (!told.empty()) throw Kind(told);
}

// Throws `mine` on this rank; throws PeerError where only others failed. Collective.
void share_failures(ProcessGroup& group, const std::exception_ptr& mine, const std::string& file) {
  const auto failed = internal::gather_integers(group, {mine == nullptr ? 0 : 1});
  if (mine != nullptr) std::rethrow_exception(mine);
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < failed.size(); ++rank) {
    if (failed[rank][0] != 0) ranks.push_back(static_cast<int>(rank));
  }
  if (ranks.empty()) return;
  throw PeerError(concat("the checkpoint ", file, " could not be restored on ", name_ranks(ranks),
                         "; the error of that rank says why"),
                  ranks);
}

std::string first_difference(const Texts& saved, const Texts& here) {
  const auto [a, b] = std::mismatch(saved.begin(), saved.end(), here.begin(), here.end());
  if (a == saved.end() && b == here.end()) return "";
  if (a == saved.end()) return concat("the module has ", *b, ", which the checkpoint lacks");
  if (b == here.end()) return concat("the checkpoint has ", *a, ", which the module lacks");
  return concat("the checkpoint has ", *a, ", where the module has ", *b);
}

// The ranks whose hook has a memory. Collective.
std::vector<std::int64_t> ranks_with_memory(ProcessGroup& group, const CommHook* hook) {
  const bool has = hook == nullptr || has_memory(*hook, group);
  const auto all = internal::gather_integers(group, {has ? 1 : 0});
  std::vector<std::int64_t> ranks;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank][0] != 0) ranks.push_back(static_cast<std::int64_t>(rank));
  }
  return ranks;
}

// The parameters whose gradients DDP averages in buckets.
std::set<std::string> trained_parameters(const DdpCore& ddp) {
  std::set<std::string> trained;
  for (const Texts& bucket : ddp.logging_data().bucket_parameters) trained.insert(bucket.begin(), bucket.end());
  return trained;
}

// "'a', 'b' and 5 others"
std::string name_some(const Texts& names) {
  constexpr std::size_t kNamed = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(kNamed, names.size()); ++i) text += concat(i == 0 ? "'" : ", '", names[i], "'");
  return names.size() > kNamed ? concat(text, " and ", names.size() - kNamed, " others") : text;
}

Texts names_without(const std::set<std::string>& names, const std::set<std::string>& others) {
  Texts left;
  std::set_difference(names.begin(), names.end(), others.begin(), others.end(), std::back_inserter(left));
  return left;
}

// Removes what a hook remembers of the module's parameters that are not trained: a later run that trains them again
// would deliver what the hook owed of them long ago.
HookState without_untrained(HookState state, const torch::nn::Module& module, const std::set<std::string>& trained) {
  const Texts names = module.named_parameters().keys();
  const auto is_of = [](std::string_view key, std::string_view name) {
    return key.size() > name.size() && key.ends_with(name) && key[key.size() - name.size() - 1] == '/';
  };
  const auto is_of_untrained = [&](const auto& entry) {
    // Names may contain '/', so the longest one counts.
    const std::string* of = nullptr;
    for (const std::string& name : names) {
      if (is_of(entry.first, name) && (of == nullptr || name.size() > of->size())) of = &name;
    }
    return of != nullptr && !trained.contains(*of);
  };
  std::erase_if(state, is_of_untrained);
  return state;
}

std::string name_hook(const std::string& hook) { return hook.empty() ? "no hook" : concat("the hook ", hook); }

}  // namespace

void save_checkpoint(const std::string& file, DdpCore& ddp, torch::optim::Optimizer& optimizer,
                     const CheckpointValues& values) {
  ProcessGroup& group = *ddp.process_group();
  if (auto* const zero = dynamic_cast<ZeroRedundancyOptimizer*>(&optimizer)) zero->consolidate_state(0);
  const auto& hook = ddp.comm_hook();
  HookState state;
  std::string own_part;
  // An error of one rank is told at the end: until then all ranks make the same calls.
  std::exception_ptr error;
  const auto attempt = [&error](const auto& body) {
    try {
      if (error == nullptr) body();
    } catch (...) {
      error = std::current_exception();
    }
  };
  attempt([&] {
    if (hook != nullptr) state = hook->state_dict();
    own_part = state_bytes(local_part(state));
  });
  const Texts local = internal::gather_bytes(group, error == nullptr ? own_part : std::string(), 0);
  const std::vector<std::int64_t> memory_of = ranks_with_memory(group, hook.get());
  const auto write = [&] {
    internal::CheckpointContents contents{.tensors = describe_tensors(ddp.module()),
                                          .optimizer_class = optimizer_class(optimizer),
                                          .hook = hook == nullptr ? std::string() : hook->identity(),
                                          .bucket_order = ddp.next_bucket_order(),
                                          .values = values,
                                          .shared = shared_part(state),
                                          .local = {},
                                          .memory_of = memory_of};
    for (const std::string& part : local) contents.local.push_back(state_of(part));
    internal::write_checkpoint(file, contents, ddp, optimizer);
  };
  // Rank 0 finds no part of a rank that failed, and must not take this for a failure of its own.
  const bool has_all_parts = std::none_of(local.begin(), local.end(), [](const auto& part) { return part.empty(); });
  if (group.rank() == 0 && has_all_parts) attempt(write);
  internal::throw_first_error(group, error, concat("save_checkpoint(\"", file, "\")"));
}

struct Checkpoint::Parts {
  std::string file;
  std::string bytes;  // of the file
  internal::CheckpointContents saved;

  // `now`: the ranks that have a memory in the group of today.
  HookState state_for(const ProcessGroup& group, const std::vector<std::int64_t>& now) const {
    if (saved.local.size() == static_cast<std::size_t>(group.size()) && now == saved.memory_of)
      return join_parts(saved.shared, saved.local[static_cast<std::size_t>(group.rank())]);
    std::vector<HookState> parts;
    for (const std::int64_t rank : saved.memory_of) parts.push_back(saved.local[static_cast<std::size_t>(rank)]);
    return internal::state_for_other_ranks(saved.shared, parts);
  }
  void require_fit(DdpCore& ddp, torch::optim::Optimizer& optimizer, OtherHook other) const {
    const std::string difference = first_difference(saved.tensors, describe_tensors(ddp.module()));
    if (!difference.empty()) {
      throw InvalidArgument(concat("the checkpoint ", file, " is of another model: ", difference));
    }
    static_cast<void>(device_of(ddp.module()));
    const std::string wanted = optimizer_class(optimizer);
    if (!wanted.empty() && !saved.optimizer_class.empty() && wanted != saved.optimizer_class) {
      throw InvalidArgument(concat("the checkpoint ", file, " has the state of the optimizer ", saved.optimizer_class,
                                   ", not of ", wanted, "; make the same optimizer"));
    }
    const std::string own = ddp.comm_hook() == nullptr ? "" : ddp.comm_hook()->identity();
    if (own != saved.hook && other == OtherHook::refuse) {
      throw InvalidArgument(concat("the checkpoint ", file, " was saved under ", name_hook(saved.hook),
                                   ", and this run has ", name_hook(own),
                                   "; register the same hook before you restore, or pass OtherHook::start_new"));
    }
  }
  void load(DdpCore& ddp, torch::optim::Optimizer& optimizer, const std::vector<std::int64_t>& memory_now) {
    // On the module's device: what the module and the optimizer have elsewhere they would replace by what they read.
    InputArchive archive = internal::read_archive(bytes, device_of(ddp.module()));
    // The optimizer first: where its groups differ, nothing has changed.
    InputArchive part;
    archive.read("optimizer", part);
    InputArchive model;
    archive.read("model", model);
    const std::set<std::string> trained = trained_parameters(ddp);
    internal::replace_state(optimizer, [&] {
      optimizer.load(part);
      use_bucket_order(ddp, trained);
      ddp.load(model);
    });
    const auto& own = ddp.comm_hook();
    if (own == nullptr || own->identity() != saved.hook) return;
    HookState state = state_for(*ddp.process_group(), memory_now);
    const std::size_t entries = state.size();
    state = without_untrained(std::move(state), ddp.module(), trained);
    if (state.size() < entries) {
      log::warn(
          concat("the checkpoint ", file, ": the hook's state of parameters that this run does not train is not used"));
    }
    own->load_state_dict(state);
  }
  // The order decides about bits alone, so a run that trains other parameters goes on with an order of its own.
  void use_bucket_order(DdpCore& ddp, const std::set<std::string>& trained) const {
    if (saved.bucket_order.empty() || ddp.iterations() > 0) return;
    const std::set<std::string> trained_then(saved.bucket_order.begin(), saved.bucket_order.end());
    if (trained_then == trained) return ddp.set_bucket_order(saved.bucket_order);
    const Texts before = names_without(trained_then, trained);
    const Texts now = names_without(trained, trained_then);
    log::warn(concat("the checkpoint ", file,
                     " is of a run that trained other parameters, so the order of its buckets is not used",
                     before.empty() ? "" : "; this run does not train ", name_some(before),
                     now.empty() ? "" : "; only this run trains ", name_some(now)));
  }
};

Checkpoint::Checkpoint(const std::string& file, ProcessGroup& group) : parts_(std::make_unique<Parts>()) {
  parts_->file = file;
  std::string& bytes = parts_->bytes;
  share_failure<InvalidArgument>(group,
                                 group.rank() == 0 ? internal::read_checkpoint_file(file, bytes) : std::string());
  bytes = internal::broadcast_bytes(group, std::move(bytes), 0);
  std::exception_ptr problem;
  try {
    parts_->saved = internal::read_contents(bytes);
  } catch (const std::exception&) {
    // libtorch's own message is a page about zip files.
    problem = std::make_exception_ptr(
        InvalidArgument(concat("the file ", file, " is no checkpoint of gradwire, or a damaged one")));
  }
  share_failures(group, problem, file);
}

Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;

const CheckpointValues& Checkpoint::values() const noexcept { return parts_->saved.values; }
int Checkpoint::ranks() const noexcept { return static_cast<int>(parts_->saved.local.size()); }
const std::string& Checkpoint::hook() const noexcept { return parts_->saved.hook; }
bool Checkpoint::has_local_state() const noexcept {
  return std::any_of(parts_->saved.local.begin(), parts_->saved.local.end(),
                     [](const HookState& state) { return !state.empty(); });
}

void Checkpoint::restore(DdpCore& ddp, torch::optim::Optimizer& optimizer, OtherHook other) {
  ProcessGroup& group = *ddp.process_group();
  const std::vector<std::int64_t> memory_now = ranks_with_memory(group, ddp.comm_hook().get());
  // Twice: what does not fit is found on all ranks before any of them changes something.
  for (const bool load : {false, true}) {
    std::exception_ptr problem;
    try {
      load ? parts_->load(ddp, optimizer, memory_now) : parts_->require_fit(ddp, optimizer, other);
    } catch (...) {
      problem = std::current_exception();
    }
    share_failures(group, problem, parts_->file);
  }
}

CheckpointValues load_checkpoint(const std::string& file, DdpCore& ddp, torch::optim::Optimizer& optimizer,
                                 OtherHook other) {
  Checkpoint checkpoint(file, *ddp.process_group());
  checkpoint.restore(ddp, optimizer, other);
  return checkpoint.values();
}

}  // namespace gradwire
