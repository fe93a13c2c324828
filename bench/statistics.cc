// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "bench/statistics.h"

#include <algorithm>
#include <numeric>
#include <random>

namespace gradwire::bench {
namespace {

double quantile(const std::vector<double>& sorted, double q) {
  if (sorted.empty()) return 0;
  const double position = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double part = position - static_cast<double>(below);
  return sorted[below] * (1 - part) + sorted[above] * part;
}

}  // namespace

Summary summarize(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return {quantile(samples, 0.5), quantile(samples, 0.1), quantile(samples, 0.9), samples.size()};
}

double median_of(std::vector<double> samples) { return summarize(std::move(samples)).median; }

double mean_of(const std::vector<double>& samples) {
  return samples.empty() ? 0
                         : std::accumulate(samples.begin(), samples.end(), 0.0) / static_cast<double>(samples.size());
}

Ratio ratio_of_medians(const std::vector<std::vector<double>>& numerator,
                       const std::vector<std::vector<double>>& denominator) {
  std::vector<double> above;
  std::vector<double> below;
  for (const auto& block : numerator) above.push_back(median_of(block));
  for (const auto& block : denominator) below.push_back(median_of(block));
  return paired_ratio(above, below);
}

Ratio paired_ratio(const std::vector<double>& numerator, const std::vector<double>& denominator) {
  std::vector<double> pairs;
  for (std::size_t i = 0; i < std::min(numerator.size(), denominator.size()); ++i) {
    pairs.push_back(numerator[i] / denominator[i]);
  }
  if (pairs.empty()) return {};
  constexpr int kResamplings = 2000;
  std::mt19937_64 random(1);
  std::uniform_int_distribution<std::size_t> pick(0, pairs.size() - 1);
  std::vector<double> medians;
  for (int i = 0; i < kResamplings; ++i) {
    std::vector<double> drawn;
    for (std::size_t k = 0; k < pairs.size(); ++k) drawn.push_back(pairs[pick(random)]);
    medians.push_back(median_of(std::move(drawn)));
  }
  std::sort(medians.begin(), medians.end());
  return {median_of(pairs), quantile(medians, 0.025), quantile(medians, 0.975)};
}

}  // namespace gradwire::bench
