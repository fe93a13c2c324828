// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/optim/diloco.h"

#include <torch/optim/sgd.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/replica_sync_internal.h"
#include "gradwire/hooks/registry.h"
#include "gradwire/optim/averager_agreement_internal.h"
#include "gradwire/optim/diloco_internal.h"
#include "gradwire/optim/optimizer_text_internal.h"
#include "gradwire/optim/param_groups_internal.h"
#include "gradwire/process_group/flat_tensors_internal.h"
#include "gradwire/process_group/init.h"

namespace gradwire {
namespace {

using internal::DilocoFragment;
using internal::Lane;

constexpr const char* kDiloco = "DilocoAverager";
constexpr const char* kDilocoOptions = "diloco_options";

void require_usable(const std::vector<at::Tensor>& parameters, const DilocoOptions& options) {
  internal::require_floating_point(kDiloco, parameters);
  const auto refuse = [](const char* what, auto value, const std::string& range) {
    throw InvalidArgument(concat(kDiloco, ": ", what, " is ", value, "; it must be ", range, "."));
  };
  if (options.inner_steps < 1) refuse("inner_steps", options.inner_steps, "1 or more");
  if (options.fragments < 1 || options.fragments > options.inner_steps)
    refuse("fragments", options.fragments, concat("from 1 to inner_steps = ", options.inner_steps));
  if (options.overlap < 0 || options.overlap >= options.inner_steps)
    refuse("overlap", options.overlap, concat("from 0 to inner_steps - 1 = ", options.inner_steps - 1));
  if (!(options.mixing >= 0 && options.mixing < 1)) refuse("mixing", options.mixing, "at least 0 and below 1");
}

// What must be the same on all ranks.
internal::Compared compared_of(const std::vector<at::Tensor>& parameters, const DilocoOptions& options) {
  return {internal::compared_parameters(parameters),
          {"inner_steps", options.inner_steps},
          {"fragments", options.fragments},
          {"overlap", options.overlap},
          {"mixing (as bits)", std::bit_cast<std::int64_t>(options.mixing)},
          {"hook (as a hash)", static_cast<std::int64_t>(stable_hash(options.hook))}};
}

// The fragment of each parameter: where the middle of the parameter lies among all elements.
std::vector<std::int64_t> fragments_of(const std::vector<at::Tensor>& parameters, std::int64_t fragments) {
  std::int64_t total = 0;
  for (const at::Tensor& parameter : parameters) total += parameter.numel();
  std::vector<std::int64_t> all;
  std::int64_t before = 0;
  for (const at::Tensor& parameter : parameters) {
    const double middle = static_cast<double>(before) + static_cast<double>(parameter.numel()) / 2;
    const double share = total == 0 ? 0 : middle / static_cast<double>(total);
    all.push_back(std::min(fragments - 1, static_cast<std::int64_t>(share * static_cast<double>(fragments))));
    before += parameter.numel();
  }
  return all;
}

OptimizerFactory or_nesterov(OptimizerFactory outer) {
  if (outer != nullptr) return outer;
  return optimizer_factory<torch::optim::SGD>(torch::optim::SGDOptions(0.7).momentum(0.9).nesterov(true));
}

}  // namespace

// The lane ends its jobs first. After an exception in this rank's program the other ranks would wait for this rank in
// an exchange until its deadline, or this rank's lane for them.
internal::DilocoParts::~DilocoParts() {
  if (std::uncaught_exceptions() <= exceptions) return;
  channel->abort(concat(kDiloco, " on rank ", channel->rank(), " was destroyed by an exception"));
}

internal::DilocoParts::DilocoParts(std::vector<at::Tensor> all, DilocoOptions chosen)
    : parameters(std::move(all)), options(std::move(chosen)) {
  require_usable(parameters, options);
  group = options.process_group != nullptr ? options.process_group : default_group();
  make_hook(options.hook);  // refuses a wrong text before any communication
  channel = group->dup();
  const bool duplicated = channel != nullptr;
  if (!duplicated) channel = group;
  require_agreement(kDiloco, *channel, compared_of(parameters, options));
  if (!duplicated && options.overlap > 0) {
    throw UnsupportedError(concat(kDiloco, ": the group '", group->name(),
                                  "' cannot be duplicated, so exchanges cannot go on beside other calls; overlap = ",
                                  options.overlap, " must be 0 there."));
  }
  internal::broadcast_values(*channel, parameters);
  internal::mark_changed(parameters);
  make_fragments();
  outer_optimizer = optimizer_text(fragments.front().fragment->outer_optimizer());
  require_agreement(kDiloco, *channel, "the outer optimizer", outer_optimizer);
  if (options.overlap > 0) lane = std::make_unique<Lane>(0, std::vector<LaneScope::Route>{{group, channel}});
}

std::string internal::DilocoParts::identity() const {
  std::int64_t numel = 0;
  for (const at::Tensor& parameter : parameters) numel += parameter.numel();
  return concat(kDiloco, " over ", parameters.size(), " parameters of ", numel, " elements (sizes ",
                static_cast<std::uint64_t>(compared_parameters(parameters).second),
                "), inner_steps = ", options.inner_steps, ", fragments = ", options.fragments,
                ", overlap = ", options.overlap, ", mixing = ", exact(options.mixing), ", hook = ", options.hook);
}

bool internal::DilocoParts::begins_at(std::int64_t count) const {
  const auto begins = [&](const Scheduled& each) { return count % options.inner_steps == turn_of(each.number); };
  return count > 0 && std::any_of(fragments.begin(), fragments.end(), begins);
}

void internal::DilocoParts::require_in_group() const {
  if (is_in_group) return;
  throw InvalidArgument(
      concat(kDiloco, ": this worker has left its elastic job after step ", steps, ", and cannot exchange any more."));
}

void internal::DilocoParts::finish_what_is_due(std::int64_t count) {
  for (const auto& [number, fragment] : fragments) {
    if (fragment->is_under_way() && fragment->begun_at() + options.overlap <= count) fragment->finish(options.mixing);
  }
}

void internal::DilocoParts::do_what_is_due(std::int64_t count) {
  finish_what_is_due(count);
  for (const auto& [number, fragment] : fragments) {
    const bool begins = count > 0 && count % options.inner_steps == turn_of(number) && fragment->begun_at() != count;
    if (begins) fragment->begin(lane.get(), count);
  }
  if (options.overlap == 0) finish_what_is_due(count);
}

void internal::DilocoParts::make_fragments() {
  const std::vector<std::int64_t> numbers = fragments_of(parameters, options.fragments);
  const OptimizerFactory outer = or_nesterov(options.outer);
  for (std::int64_t number = 0; number < options.fragments; ++number) {
    std::vector<at::Tensor> members;
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (numbers[i] != number) continue;
      members.push_back(parameters[i]);
      places.push_back(i);
    }
    for (const auto& list : internal::places_by_type_and_device(members)) {
      auto layout = std::make_shared<BucketLayout>();
      layout->index = fragments.size();
      layout->dtype = members[list.front()].scalar_type();
      layout->device = members[list.front()].device();
      for (const std::size_t i : list)
        layout->append(places[i], members[i], members[i], concat("parameter", places[i]));
      fragments.push_back(
          {number, std::make_unique<DilocoFragment>(std::move(layout), channel, outer, make_hook(options.hook))});
    }
  }
}

DilocoAverager::DilocoAverager(std::vector<at::Tensor> parameters, DilocoOptions options)
    : parts_(std::make_unique<internal::DilocoParts>(std::move(parameters), std::move(options))) {}

DilocoAverager::~DilocoAverager() = default;

void DilocoAverager::average_parameters(const std::vector<at::Tensor>& parameters) {
  internal::DilocoParts& p = *parts_;
  internal::require_same_parameters(kDiloco, parameters, p.parameters, p.steps);
  p.require_in_group();
  const std::int64_t count = p.steps + 1;
  // In an elastic job the step has ended, whatever comes: resume() does what is left.
  if (p.is_elastic) p.steps = count;
  try {
    p.do_what_is_due(count);
  } catch (...) {
    abort(describe(std::current_exception()));
    throw;
  }
  p.steps = count;
}

void DilocoAverager::finish_exchanges() {
  for (const auto& [number, fragment] : parts_->fragments) {
    if (fragment->is_under_way()) fragment->finish(parts_->options.mixing);
  }
}

void DilocoAverager::abort(const std::string& reason) {
  parts_->channel->abort(concat(kDiloco, " on rank ", parts_->channel->rank(), ": ", reason));
}

std::int64_t DilocoAverager::step() const { return parts_->steps; }

void DilocoAverager::set_step(std::int64_t step) {
  if (step < 0) throw InvalidArgument(concat(kDiloco, ": the step is ", step, "; it must be 0 or more."));
  for (const auto& [number, fragment] : parts_->fragments) fragment->shift(step - parts_->steps);
  parts_->steps = step;
}

void DilocoAverager::save(torch::serialize::OutputArchive& archive) const {
  ModelAverager::save(archive);
  archive.write(kDilocoOptions, c10::IValue(parts_->identity()));
  archive.write("fragments", c10::IValue(static_cast<std::int64_t>(parts_->fragments.size())));
  for (std::size_t i = 0; i < parts_->fragments.size(); ++i) {
    torch::serialize::OutputArchive part(archive.compilation_unit());
    parts_->fragments[i].fragment->save(part, DilocoFragment::Scope::rank);
    archive.write(concat("fragment", i), part);
  }
}

void DilocoAverager::load(torch::serialize::InputArchive& archive) {
  internal::require_saved_with(kDiloco, archive, kDilocoOptions, parts_->identity());
  std::int64_t step = 0;
  {
    c10::IValue value;
    archive.read("step", value);
    step = value.toInt();
  }
  for (std::size_t i = 0; i < parts_->fragments.size(); ++i) {
    torch::serialize::InputArchive part;
    archive.read(concat("fragment", i), part);
    parts_->fragments[i].fragment->load(part, DilocoFragment::Scope::rank);
  }
  parts_->steps = step;
}

std::vector<at::Tensor> DilocoAverager::outer_parameters() const {
  std::vector<at::Tensor> all(parts_->parameters.size());
  for (const auto& scheduled : parts_->fragments) {
    const DilocoFragment& fragment = *scheduled.fragment;
    for (std::size_t i = 0; i < fragment.outer().size(); ++i) {
      const auto found = std::find_if(parts_->parameters.begin(), parts_->parameters.end(),
                                      [&](const at::Tensor& one) { return one.is_same(fragment.parameters()[i]); });
      all[static_cast<std::size_t>(found - parts_->parameters.begin())] = fragment.outer()[i];
    }
  }
  return all;
}

std::uint64_t DilocoAverager::payload_bytes() const { return parts_->channel->payload_bytes(); }

}  // namespace gradwire
