// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/elastic/elastic.h"

#include <torch/serialize/archive.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/archive_bytes_internal.h"
#include "gradwire/elastic/elastic_impl_internal.h"

namespace gradwire {
namespace {

// Newcomers get what was added before run(), and would not know the rest.
void require_before_run(bool has_run, const char* what) {
  if (!has_run) return;
  throw InvalidArgument(concat("Elastic::", what,
                               ": run() was called before; add everything before run(), the same on "
                               "all members"));
}

// `known`: what was added; `address_of` of one of them is the address of the object.
template <class Known, class AddressOf>
void require_new(const std::vector<Known>& known, const void* object, const char* what, const AddressOf& address_of) {
  if (std::none_of(known.begin(), known.end(), [&](const Known& each) { return address_of(each) == object; })) return;
  throw InvalidArgument(concat("Elastic::add(): ", what, " was added before; add each object once"));
}

// One kind of training in a job: steps that all do together, or members that train separately. `separate`: the kind of
// what is about to be added.
void require_one_kind(const internal::TrainingState& state, bool separate) {
  const bool has_other =
      separate ? !state.cores().empty() || !state.shards().empty() : state.separate_workers() != nullptr;
  if (!has_other) return;
  throw InvalidArgument(
      "Elastic::add(): an optimizer that trains separately (DilocoAverager) excludes DistributedDataParallel and "
      "ZeroRedundancyOptimizer; add one or the other");
}

void add_separate(internal::TrainingState& state, const std::shared_ptr<ElasticGroup>& elastic,
                  torch::optim::Optimizer& optimizer, SeparateOptimizer& separate) {
  SeparateWorkers& workers = *separate.separate_workers();
  if (workers.exchange_group() != elastic) {
    throw InvalidArgument(concat("Elastic::add(): ", workers.exchange_identity(),
                                 " was made over another group; give it the process_group elastic.group()"));
  }
  if (state.separate_workers() != nullptr)
    throw InvalidArgument("Elastic::add(): a second optimizer that trains separately; an elastic job has one");
  require_one_kind(state, /*separate=*/true);
  state.add({&optimizer, &separate, &workers});
}

}  // namespace

Elastic::Elastic(ElasticOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Elastic::~Elastic() = default;

const std::shared_ptr<ElasticGroup>& Elastic::group() const noexcept { return impl_->group(); }

Elastic& Elastic::add(DdpCore& core) {
  require_before_run(impl_->has_run(), "add()");
  require_new(impl_->state().cores(), &core, "this DistributedDataParallel", [](const auto* each) { return each; });
  if (core.process_group() != impl_->group()) {
    throw InvalidArgument(
        "Elastic::add(): the DistributedDataParallel was made over another group; give it "
        "DdpOptions::process_group = elastic.group()");
  }
  require_one_kind(impl_->state(), /*separate=*/false);
  impl_->state().add(core);
  return *this;
}

Elastic& Elastic::add(torch::optim::Optimizer& optimizer) {
  require_before_run(impl_->has_run(), "add()");
  if (auto* const shards = dynamic_cast<ShardedState*>(&optimizer)) return add_shards(*shards);
  if (auto* const separate = dynamic_cast<SeparateOptimizer*>(&optimizer)) {
    if (separate->separate_workers() != nullptr) {
      add_separate(impl_->state(), impl_->group(), optimizer, *separate);
      return *this;
    }
  }
  require_new(impl_->state().optimizers(), &optimizer, "this optimizer", [](const auto* each) { return each; });
  impl_->state().add(optimizer);
  return *this;
}

Elastic& Elastic::add(GradScaler& scaler) {
  require_before_run(impl_->has_run(), "add()");
  require_new(impl_->state().user_states(), &scaler, "this GradScaler", [](const auto& each) { return each.object; });
  const auto save = [&scaler] {
    torch::serialize::OutputArchive archive;
    if (scaler.is_enabled()) scaler.save(archive);
    return StatePart{internal::archive_bytes(archive)};
  };
  const auto load = [&scaler](const StatePart& part) {
    torch::serialize::InputArchive archive = internal::read_archive(part.text);
    if (scaler.is_enabled()) scaler.load(archive);
  };
  impl_->state().add(internal::UserState{.name = "GradScaler",
                                         .save = save,
                                         .load = load,
                                         .begin_step = [&scaler] { scaler.restart(); },
                                         .object = &scaler});
  return *this;
}

Elastic& Elastic::add_state(std::string name, std::function<std::string()> save,
                            std::function<void(const std::string&)> load) {
  require_before_run(impl_->has_run(), "add_state()");
  impl_->state().add(internal::UserState{std::move(name), [save = std::move(save)] { return StatePart{save()}; },
                                         [load = std::move(load)](const StatePart& part) { load(part.text); }});
  return *this;
}

Elastic& Elastic::add_state(std::string name, std::function<StatePart()> save, std::function<void(StatePart)> load) {
  require_before_run(impl_->has_run(), "add_state()");
  impl_->state().add(internal::UserState{std::move(name), std::move(save), std::move(load), /*has_tensors=*/true});
  return *this;
}

Elastic& Elastic::add_shards(ShardedState& state) {
  require_before_run(impl_->has_run(), "add_shards()");
  require_new(impl_->state().shards(), &state, "this state", [](const auto& each) { return each.state; });
  const std::string identity = state.sharding_identity();  // refuses what cannot be dealt anew
  if (state.sharding_group() != impl_->group()) {
    throw InvalidArgument(concat("Elastic::add(): ", identity,
                                 " was made over another group; give it the process_group elastic.group()"));
  }
  require_one_kind(impl_->state(), /*separate=*/false);
  const ElasticOptions& options = impl_->options();
  impl_->state().add(internal::AddedShards{&state, {options.shard_copies, options.shard_checkpoint}});
  return *this;
}

ElasticEnd Elastic::run(std::int64_t steps, const std::function<void(const ElasticStep&)>& step) {
  if (steps < 0) throw InvalidArgument(concat("Elastic::run(): ", steps, " steps; give 0 or more"));
  if (impl_->state().cores().empty() && impl_->state().separate_workers() == nullptr) {
    throw InvalidArgument(
        "Elastic::run(): no DistributedDataParallel was added, and no PostLocalSGDOptimizer with a DilocoAverager; "
        "call add() first");
  }
  if (impl_->options().copy_before_step && impl_->state().separate_workers() != nullptr) {
    throw InvalidArgument(
        "Elastic::run(): ElasticOptions::copy_before_step is for members that train together; the steps of members "
        "that train separately (DilocoAverager) are not taken back. Leave it out");
  }
  if (impl_->has_run()) throw InvalidArgument("Elastic::run() was called before; make a new Elastic for another run");
  return impl_->run(steps, step);
}

void Elastic::leave() noexcept { impl_->leave(); }
std::int64_t Elastic::counted() const noexcept { return impl_->counted(); }

}  // namespace gradwire
