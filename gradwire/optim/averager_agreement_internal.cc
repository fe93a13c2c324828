// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/optim/averager_agreement_internal.h"

#include <algorithm>

#include "gradwire/base/error.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/byte_exchange_internal.h"
#include "gradwire/ddp/replica_sync_internal.h"
#include "gradwire/optim/layout_hash_internal.h"
#include "gradwire/optim/param_groups_internal.h"

namespace gradwire::internal {

Compared::value_type compared_parameters(const std::vector<at::Tensor>& parameters) {
  return {"the parameters (as a hash of their sizes)", hash_of_layouts(parameters)};
}

void require_agreement(std::string_view who, ProcessGroup& group, const Compared& compared) {
  std::vector<std::int64_t> mine;
  for (const auto& [name, value] : compared) mine.push_back(value);
  const auto ranks = gather_integers(group, mine);
  for (std::size_t other = 1; other < ranks.size(); ++other) {
    for (std::size_t i = 0; i < compared.size(); ++i) {
      if (ranks[other][i] == ranks[0][i]) continue;
      throw MismatchError(concat(who, ": ", compared[i].first, " of rank 0: ", ranks[0][i], ", of rank ", other, ": ",
                                 ranks[other][i], "; all ranks must pass the same."));
    }
  }
}

void require_agreement(std::string_view who, ProcessGroup& group, std::string_view name, const std::string& text) {
  const auto hashes = gather_integers(group, {static_cast<std::int64_t>(stable_hash(text))});
  const auto other = std::find_if(hashes.begin(), hashes.end(), [&](const auto& hash) { return hash != hashes[0]; });
  if (other == hashes.end()) return;
  const auto rank = static_cast<int>(other - hashes.begin());
  const std::string first = broadcast_bytes(group, text, 0);
  throw MismatchError(concat(who, ": ", name, " of rank 0: ", first, ", of rank ", rank, ": ",
                             broadcast_bytes(group, text, rank), "; all ranks must pass the same."));
}

void require_floating_point(std::string_view who, const std::vector<at::Tensor>& parameters) {
  require_parameters(who, parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].is_floating_point()) continue;
    throw InvalidArgument(concat(who, ": parameter number ", i, " is ", parameters[i].scalar_type(),
                                 "; only floating-point parameters can be averaged."));
  }
}

void require_same_parameters(std::string_view who, const std::vector<at::Tensor>& given,
                             const std::vector<at::Tensor>& expected, std::int64_t step) {
  const auto same = [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); };
  if (std::equal(given.begin(), given.end(), expected.begin(), expected.end(), same)) return;
  throw InvalidArgument(concat(who, " was made for ", expected.size(), " parameters and got ", given.size(),
                               " others at step ", step, "; pass those that it was made for."));
}

void require_saved_with(std::string_view who, torch::serialize::InputArchive& archive, const char* key,
                        const std::string& identity) {
  c10::IValue saved;
  if (!archive.try_read(key, saved))
    throw InvalidArgument(concat(who, ": the archive has no '", key, "'; no ", who, " saved it."));
  if (saved.toStringRef() == identity) return;
  throw InvalidArgument(concat(who, ": the archive was saved with ", saved.toStringRef(), ", and this averager has ",
                               identity, "; load it into one with the same parameters and options."));
}

}  // namespace gradwire::internal
