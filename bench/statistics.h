// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Statistics of samples.
#pragma once

#include <cstddef>
#include <vector>

namespace gradwire::bench {

struct Summary {
  double median = 0;
  double p10 = 0;
  double p90 = 0;
  std::size_t samples = 0;
};

Summary summarize(std::vector<double> samples);

double median_of(std::vector<double> samples);

double mean_of(const std::vector<double>& samples);

// A ratio of medians, with the interval that holds the ratio in 95 of 100 resamplings of the blocks (bootstrap; Efron,
// 1979).
struct Ratio {
  double value = 0;
  double low = 0;
  double high = 0;
};

// The median of the ratios of paired measurements: numerator[i] and denominator[i] were measured one after the other.
// Deterministic.
Ratio paired_ratio(const std::vector<double>& numerator, const std::vector<double>& denominator);

// The same for blocks of samples; each block counts by its median.
Ratio ratio_of_medians(const std::vector<std::vector<double>>& numerator,
                       const std::vector<std::vector<double>>& denominator);

}  // namespace gradwire::bench
