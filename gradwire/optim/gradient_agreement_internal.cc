// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// One exchange of two numbers on each rank, step and hash, comes before the average. Without it a rank with other
// gradients, or with none, would bring other parameters to the average, or come to a later one.
#include "gradwire/optim/gradient_agreement_internal.h"

#include <algorithm>
#include <string>

#include "gradwire/base/error.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/byte_exchange_internal.h"
#include "gradwire/ddp/replica_sync_internal.h"
#include "gradwire/optim/layout_hash_internal.h"
#include "gradwire/optim/model_averaging.h"

namespace gradwire::internal {
namespace {

// Of the parameters with a gradient: their numbers, dtypes and sizes. Others may differ between ranks.
std::int64_t hash_of_gradients(const std::vector<at::Tensor>& parameters) {
  std::vector<std::int64_t> numbers;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].grad().defined()) continue;
    numbers.push_back(static_cast<std::int64_t>(i));
    append_sizes(numbers, parameters[i]);
  }
  return static_cast<std::int64_t>(stable_hash(numbers));
}

// A line for each parameter, empty for one without a gradient.
std::string describe_gradients(const std::vector<at::Tensor>& parameters) {
  std::string lines;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) lines += concat(parameter.scalar_type(), " ", parameter.sizes());
    lines += '\n';
  }
  return lines;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

bool has_no_gradients(const std::vector<std::string>& lines) {
  return std::all_of(lines.begin(), lines.end(), [](const std::string& line) { return line.empty(); });
}

// What rank 0 and rank `other` have of the first parameter in which they differ.
std::string first_difference_of(std::vector<std::string> zero, std::vector<std::string> one, std::size_t other) {
  const std::size_t count = std::max(zero.size(), one.size());
  zero.resize(count);
  one.resize(count);
  const auto place = std::mismatch(zero.begin(), zero.end(), one.begin());
  if (place.first == zero.end()) return "the parameters with a gradient differ";
  const auto number = place.first - zero.begin();
  const std::string& a = *place.first;
  const std::string& b = *place.second;
  if (!a.empty() && !b.empty())
    return concat("parameter number ", number, " is ", a, " on rank 0 and ", b, " on rank ", other);
  const std::string with = a.empty() ? concat("rank ", other) : std::string("rank 0");
  const std::string without = a.empty() ? std::string("rank 0") : concat("rank ", other);
  return concat("parameter number ", number, " (", a.empty() ? b : a, ") has a gradient on ", with, " and none on ",
                without);
}

void require_same_gradients(std::string_view who, ProcessGroup& group, const std::vector<at::Tensor>& parameters,
                            std::int64_t step) {
  const auto ranks = gather_integers(group, {step, hash_of_gradients(parameters)});
  for (std::size_t other = 1; other < ranks.size(); ++other) {
    if (ranks[other][0] == ranks[0][0]) continue;
    throw MismatchError(concat(who, ": rank 0 averages at step ", ranks[0][0], " and rank ", other, " at step ",
                               ranks[other][0],
                               "; every rank calls the averager once a step, and continues from the same step."));
  }
  const auto differs = std::find_if(ranks.begin(), ranks.end(), [&](const auto& rank) { return rank != ranks[0]; });
  if (differs == ranks.end()) return;
  const auto other = static_cast<std::size_t>(differs - ranks.begin());
  const std::string mine = describe_gradients(parameters);
  const auto zero = lines_of(broadcast_bytes(group, mine, 0));
  const auto one = lines_of(broadcast_bytes(group, mine, static_cast<int>(other)));
  std::string nothing;
  for (const auto& [rank, lines] : {std::pair(std::size_t{0}, &zero), std::pair(other, &one)}) {
    if (has_no_gradients(*lines)) nothing = concat(" Rank ", rank, " has no gradients at all.");
  }
  throw MismatchError(concat(who, " at step ", step, ": ", first_difference_of(zero, one, other),
                             "; the parameters with a gradient are averaged, so they must be the same on all ranks.",
                             nothing, " Give a rank without data for a parameter a gradient of zeros."));
}

}  // namespace

bool average_with_gradients(std::string_view who, const std::vector<at::Tensor>& parameters,
                            const std::shared_ptr<ProcessGroup>& group, std::int64_t step) {
  if (group->size() > 1) require_same_gradients(who, *group, parameters, step);
  const std::vector<at::Tensor> chosen = parameters_to_average(parameters);
  average_parameters(chosen, group);
  return !chosen.empty();
}

}  // namespace gradwire::internal
