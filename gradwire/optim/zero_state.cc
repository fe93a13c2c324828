// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The state of all ranks in one place, and back.
#include <ATen/Functions.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <algorithm>
#include <string>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/byte_exchange_internal.h"
#include "gradwire/ddp/replica_sync_internal.h"
#include "gradwire/hooks/split_optimizer_internal.h"
#include "gradwire/optim/zero_internal.h"

namespace gradwire {

using internal::copy_options;
using internal::kZeroName;
using internal::move_state;
using internal::parameters_in;
using internal::ParamGroups;
using internal::require_state_of_sizes;
using internal::ZeroParts;
using internal::ZeroPiece;

// The optimizer itself over all parameters, without state.
std::unique_ptr<torch::optim::Optimizer> ZeroRedundancyOptimizer::make_plain() const {
  auto plain = parts_->make(param_groups_);
  copy_options(param_groups_, plain->param_groups());
  return plain;
}

void ZeroRedundancyOptimizer::consolidate_state(int to) {
  ZeroParts& p = *parts_;
  p.require_dealt();
  if (to < 0 || to >= p.group->size()) {
    throw InvalidArgument(
        concat(kZeroName, ": consolidate_state(", to, "): the group has ranks 0 to ", p.group->size() - 1, "."));
  }
  if (p.options.overlap_with_ddp && !p.placed) {
    throw InvalidArgument(concat(kZeroName,
                                 ": with overlap_with_ddp there is no state before the first update; DDP's buckets are "
                                 "not known yet."));
  }
  p.consolidated.reset();
  const int rank = p.rank();
  std::vector<std::string> own(p.pieces.size());
  std::vector<std::int64_t> numbers{to};
  for (std::size_t i = 0; i < p.pieces.size(); ++i) {
    if (p.pieces[i]->owner == rank) own[i] = internal::bytes_of_optimizer(*p.pieces[i]->optimizer);
    numbers.push_back(static_cast<std::int64_t>(own[i].size()));
  }
  const auto by_rank = internal::gather_integers(*p.channel, numbers);
  for (std::size_t other = 1; other < by_rank.size(); ++other) {
    if (by_rank[other][0] == by_rank[0][0]) continue;
    throw MismatchError(concat(kZeroName, ": consolidate_state() was called for rank ", by_rank[0][0],
                               " on rank 0 and for rank ", by_rank[other][0], " on rank ", other, "."));
  }
  auto plain = rank == to ? make_plain() : nullptr;
  internal::JoinedState joined;
  for (std::size_t i = 0; i < p.pieces.size(); ++i) {
    ZeroPiece& piece = *p.pieces[i];
    std::string bytes = std::move(own[i]);
    if (piece.owner != to) {
      const auto size = static_cast<std::size_t>(by_rank[static_cast<std::size_t>(piece.owner)][i + 1]);
      bytes = internal::transfer_bytes(*p.channel, std::move(bytes), size, piece.owner, to);
    }
    if (plain == nullptr) continue;
    // Loading maps what the owner remembers to this rank's own copies of the parameters.
    const auto copy = p.make(piece.groups);
    internal::load_optimizer(*copy, bytes);
    if (piece.segments.empty()) {
      move_state(*copy, *plain, parameters_in(piece.groups));
    } else {
      joined.add(segments_of(piece, *copy));
    }
  }
  if (plain != nullptr) joined.give(*plain);
  p.consolidated = std::move(plain);
}

void ZeroRedundancyOptimizer::save(torch::serialize::OutputArchive& archive) const {
  if (parts_->consolidated == nullptr) {
    throw InvalidArgument(concat(kZeroName, ": rank ", parts_->rank(),
                                 " does not have the state of all ranks as of the last step; call consolidate_state(",
                                 parts_->rank(), ") on all ranks first."));
  }
  copy_options(param_groups_, parts_->consolidated->param_groups());
  parts_->consolidated->save(archive);
}

void ZeroRedundancyOptimizer::load(torch::serialize::InputArchive& archive) {
  ZeroParts& p = *parts_;
  auto plain = make_plain();
  plain->load(archive);
  require_state_of_sizes(*plain, kZeroName);
  p.consolidated.reset();
  copy_options(plain->param_groups(), param_groups_);
  std::vector<internal::SteppedSegments> segments;
  for (const auto& piece : p.pieces) {
    if (piece->optimizer == nullptr) continue;
    if (piece->segments.empty()) {
      move_state(*plain, *piece->optimizer, parameters_in(piece->groups));
      internal::move_to_parameters(*piece->optimizer);
    } else {
      segments.push_back(segments_of(*piece, *piece->optimizer));
    }
  }
  if (p.copy != nullptr) {
    move_state(*plain, *p.copy, parameters_in(p.copy->param_groups()));
    internal::move_to_parameters(*p.copy);
  }
  internal::split_state(*plain, segments);
  if (p.options.overlap_with_ddp && !p.placed) p.loaded = std::move(plain);
}

}  // namespace gradwire
