// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/optim/checkpoint.h"

#include <c10/util/Type.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/whole_file.h"
#include "gradwire/ddp/archive_bytes_internal.h"
#include "gradwire/ddp/byte_exchange_internal.h"
#include "gradwire/ddp/first_rank_memory.h"
#include "gradwire/ddp/hook_estimates_internal.h"
#include "gradwire/ddp/hook_state.h"
#include "gradwire/ddp/replica_sync_internal.h"
#include "gradwire/ddp/shared_error_internal.h"
#include "gradwire/hooks/replaced_state_internal.h"
#include "gradwire/optim/file_sum_internal.h"
#include "gradwire/optim/zero_redundancy_optimizer.h"

namespace gradwire {
namespace {

using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;
using Texts = std::vector<std::string>;

constexpr const char* kFormat = "gradwire checkpoint 1";

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

template <class Write>
void write_part(OutputArchive& archive, const std::string& name, const Write& write) {
  OutputArchive part(archive.compilation_unit());
  write(part);
  archive.write(name, part);
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

void write_archive(const std::string& file, OutputArchive& archive) {
  WholeFile whole(file);
  internal::FileSum sum;
  archive.save_to([&](const void* data, std::size_t bytes) {
    whole.write(data, bytes);
    sum.add({static_cast<const char*>(data), bytes});
    return bytes;
  });
  const std::string line = internal::sum_line(sum);
  whole.write(line.data(), line.size());
  whole.finish();
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

// Returns what is wrong with the file, and throws nothing: the other ranks wait for this rank's answer.
std::string read_file(const std::string& file, std::string& bytes) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return concat("the checkpoint ", file, " does not exist, or cannot be read: ", std::strerror(errno));
  try {
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  } catch (const std::exception& error) {
    return concat("the checkpoint ", file, " could not be read: ", error.what());
  }
  const auto whole = internal::without_sum(bytes);
  if (!whole) return concat("the checkpoint ", file, " is damaged: its bytes are not those that were written");
  bytes.resize(whole->size());
  return "";
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
    OutputArchive archive;
    archive.write("format", c10::IValue(kFormat));
    archive.write("tensors", c10::IValue(describe_tensors(ddp.module())));
    archive.write("optimizer_class", c10::IValue(optimizer_class(optimizer)));
    archive.write("hook", c10::IValue(hook == nullptr ? std::string() : hook->identity()));
    archive.write("bucket_order", c10::IValue(ddp.bucket_order()));
    archive.write("ranks", c10::IValue(static_cast<std::int64_t>(group.size())));
    archive.write("memory_of", c10::IValue(memory_of));
    write_part(archive, "values", [&](auto& part) { save_hook_state(values, part); });
    write_part(archive, "hook_shared", [&](auto& part) { save_hook_state(shared_part(state), part); });
    for (std::size_t rank = 0; rank < local.size(); ++rank) {
      write_part(archive, concat("hook_rank", rank), [&](auto& part) { save_hook_state(state_of(local[rank]), part); });
    }
    write_part(archive, "model", [&](auto& part) { ddp.save(part); });
    write_part(archive, "optimizer", [&](auto& part) { optimizer.save(part); });
    write_archive(file, archive);
  };
  // Rank 0 finds no part of a rank that failed, and must not take this for a failure of its own.
  const bool has_all_parts = std::none_of(local.begin(), local.end(), [](const auto& part) { return part.empty(); });
  if (group.rank() == 0 && has_all_parts) attempt(write);
  internal::throw_first_error(group, error, concat("save_checkpoint(\"", file, "\")"));
}

struct Checkpoint::Parts {
  std::string file;
  std::string bytes;  // of the file
  Texts tensors;
  std::string optimizer_class;
  std::string hook;
  Texts bucket_order;
  CheckpointValues values;
  HookState shared;
  std::vector<HookState> local;         // by rank of those that saved
  std::vector<std::int64_t> memory_of;  // the ranks of those whose local state counts for other ranks

  // Throws some exception where the bytes are no checkpoint.
  void read() {
    InputArchive archive = internal::read_archive(bytes);
    const auto value = [&archive](const std::string& key) {
      c10::IValue found;
      archive.read(key, found);
      return found;
    };
    const auto state = [&archive](const std::string& key) {
      InputArchive part;
      archive.read(key, part);
      return load_hook_state(part);
    };
    if (value("format").toStringRef() != kFormat) throw InvalidArgument("another format");
    tensors = value("tensors").to<Texts>();
    optimizer_class = value("optimizer_class").toStringRef();
    hook = value("hook").toStringRef();
    bucket_order = value("bucket_order").to<Texts>();
    values = state("values");
    shared = state("hook_shared");
    const std::int64_t ranks = value("ranks").toInt();
    for (std::int64_t rank = 0; rank < ranks; ++rank) local.push_back(state(concat("hook_rank", rank)));
    memory_of.resize(local.size());
    std::iota(memory_of.begin(), memory_of.end(), std::int64_t{0});
    c10::IValue read;
    if (archive.try_read("memory_of", read)) memory_of = read.to<std::vector<std::int64_t>>();
    for (const std::int64_t rank : memory_of) static_cast<void>(local.at(static_cast<std::size_t>(rank)));
  }
  // `now`: the ranks that have a memory in the group of today.
  HookState state_for(const ProcessGroup& group, const std::vector<std::int64_t>& now) const {
    if (local.size() == static_cast<std::size_t>(group.size()) && now == memory_of)
      return join_parts(shared, local[static_cast<std::size_t>(group.rank())]);
    std::vector<HookState> parts;
    for (const std::int64_t rank : memory_of) parts.push_back(local[static_cast<std::size_t>(rank)]);
    return internal::state_for_other_ranks(shared, parts);
  }
  void require_fit(DdpCore& ddp, torch::optim::Optimizer& optimizer, OtherHook other) const {
    const std::string difference = first_difference(tensors, describe_tensors(ddp.module()));
    if (!difference.empty()) {
      throw InvalidArgument(concat("the checkpoint ", file, " is of another model: ", difference));
    }
    static_cast<void>(device_of(ddp.module()));
    const std::string wanted = gradwire::optimizer_class(optimizer);
    if (!wanted.empty() && !optimizer_class.empty() && wanted != optimizer_class) {
      throw InvalidArgument(concat("the checkpoint ", file, " has the state of the optimizer ", optimizer_class,
                                   ", not of ", wanted, "; make the same optimizer"));
    }
    const std::string own = ddp.comm_hook() == nullptr ? "" : ddp.comm_hook()->identity();
    if (own != hook && other == OtherHook::refuse) {
      throw InvalidArgument(concat("the checkpoint ", file, " was saved under ", name_hook(hook), ", and this run has ",
                                   name_hook(own),
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
    if (own == nullptr || own->identity() != hook) return;
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
    if (bucket_order.empty() || ddp.iterations() > 0) return;
    const std::set<std::string> saved(bucket_order.begin(), bucket_order.end());
    if (saved == trained) return ddp.set_bucket_order(bucket_order);
    const Texts before = names_without(saved, trained);
    const Texts now = names_without(trained, saved);
    log::warn(concat("the checkpoint ", file,
                     " is of a run that trained other parameters, so the order of its buckets is not used",
                     before.empty() ? "" : "; this run does not train ", name_some(before),
                     now.empty() ? "" : "; only this run trains ", name_some(now)));
  }
};

Checkpoint::Checkpoint(const std::string& file, ProcessGroup& group) : parts_(std::make_unique<Parts>()) {
  parts_->file = file;
  std::string& bytes = parts_->bytes;
  share_failure<InvalidArgument>(group, group.rank() == 0 ? read_file(file, bytes) : std::string());
  bytes = internal::broadcast_bytes(group, std::move(bytes), 0);
  std::exception_ptr problem;
  try {
    parts_->read();
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

const CheckpointValues& Checkpoint::values() const noexcept { return parts_->values; }
int Checkpoint::ranks() const noexcept { return static_cast<int>(parts_->local.size()); }
const std::string& Checkpoint::hook() const noexcept { return parts_->hook; }
bool Checkpoint::has_local_state() const noexcept {
  return std::any_of(parts_->local.begin(), parts_->local.end(), [](const HookState& state) { return !state.empty(); });
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
