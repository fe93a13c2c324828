// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Parameters that one rank steps, on their way to the others.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// Lists of parameters, as they are or in flat buffers that travel instead of them. All ranks have the same lists.
class SharedParameters {
 public:
  // `packs`: parameters are moved into flat buffers, one a list, dtype and device, with their values.
  explicit SharedParameters(bool packs) : packs_(packs) {}

  void add(std::vector<at::Tensor> parameters);
  bool empty() const noexcept { return lists_.empty(); }

  // Collective: all ranks get the values that the parameters have on rank `owner`. A parameter that lies in its buffer
  // no longer, because torch::load(), Module::to() or set_data() gave it other memory, is moved into one again, with
  // what it holds now and of the type that it has now. Parameters of other sizes or types on the ranks: as broadcast().
  void share(ProcessGroup& group, int owner);

 private:
  struct List {
    std::vector<at::Tensor> parameters;
    std::vector<at::Tensor> messages;  // the parameters, or the buffers that they lie in
  };

  const bool packs_;
  std::vector<List> lists_;
};

}  // namespace gradwire::internal
