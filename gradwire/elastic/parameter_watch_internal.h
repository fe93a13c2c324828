// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Whether a step has changed the parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace gradwire::internal {

// Goes by the version counters, and by a few values of each parameter: libtorch's SGD, and whoever writes through
// data(), changes values without a count. A change without a count that leaves all of these values as they were stays
// unnoticed. A step of an optimizer changes nearly every value. Not thread-safe.
class ParameterWatch final {
 public:
  // The parameters as they are now. Of parameters that are sparse or have gaps, the counters alone.
  void keep(const std::vector<at::Tensor>& parameters);
  // Whether one of these parameters, which are those of keep(), has changed since then. `versions`: the counters that
  // count for some of them, whose values were brought back.
  bool has_changed(const std::vector<at::Tensor>& parameters,
                   const std::map<const c10::TensorImpl*, std::uint32_t>& versions) const;

 private:
  std::vector<std::uint32_t> versions_;
  std::vector<std::byte> values_;        // of parameters on the CPU, one after another
  std::vector<at::Tensor> from_device_;  // by parameter; undefined for those on the CPU
};

}  // namespace gradwire::internal
