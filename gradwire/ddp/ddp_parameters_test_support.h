// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What tests of parameters that are not plain share.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "gradwire/ddp/ddp_test_support.h"

namespace gradwire::testing::ddp_parameters_test {

class DdpParameters : public ::testing::TestWithParam<Setup> {
 protected:
  static DdpOptions options(const std::shared_ptr<ProcessGroup>& group) {
    DdpOptions made = options_for(GetParam(), group);
    made.bucket_cap_mb = 0.0001;  // a bucket a tensor
    return made;
  }
  // For an Mlp.
  static DdpOptions with_one_delayed(const std::shared_ptr<ProcessGroup>& group) {
    DdpOptions made = options(group);
    made.delay_all_reduce_named_params = {"layer2.weight"};
    made.param_to_hook_all_reduce = "layer1.weight";
    return made;
  }
};

// The average of the gradients that an Mlp in bfloat16 gets on each of two ranks from `loss`, summed in float32.
inline std::vector<at::Tensor> low_average(const std::function<at::Tensor(Mlp&, int rank)>& loss) {
  std::vector<at::Tensor> averages;
  for (int rank = 0; rank < 2; ++rank) {
    Mlp alone;
    alone->to(at::kBFloat16);
    loss(alone, rank).backward();
    const auto gradients = gradients_of(*alone);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (rank == 0) averages.emplace_back();
      if (!gradients[i].defined()) continue;
      const at::Tensor mine = gradients[i].to(at::kFloat) / 2;
      averages[i] = averages[i].defined() ? averages[i] + mine : mine;
    }
  }
  return averages;
}

}  // namespace gradwire::testing::ddp_parameters_test
