// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Makes the module equal on all ranks: compares its shapes and copies its values. Also exchanges integers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
  bool sparse = false;  // its gradients are sparse
};

// A setting that must be the same on all ranks.
struct NamedSetting {
  std::int64_t value = 0;
  // What a rank with `value` was made with, for messages: "lanes = 2".
  std::function<std::string(std::int64_t value)> describe;
  // Where `value` is the hash of a list of names: what messages call the list, and the names.
  const char* list = nullptr;
  std::vector<std::string> names = {};
};

// Compares `settings`, and the count, dtypes, sizes, strides and kinds of gradient (none, dense, sparse) of
// `parameters`, with rank 0's. Collective. When any rank differs, throws a MismatchError on all ranks, which names the
// first difference and the values of the ranks. Lists of names come first: which parameters there are may depend on
// them. Uses all_gather and broadcast only.
void verify_replicas(ProcessGroup& group, const std::vector<NamedTensor>& parameters,
                     const std::vector<NamedSetting>& settings);

// While it lives, autograd does not see that `tensors` are written to: a graph that has saved them goes through
// backward. For buffers, as PyTorch has it. Tensors without a version (of inference mode) are left alone.
class KeptVersions {
 public:
  explicit KeptVersions(std::vector<at::Tensor> tensors);
  ~KeptVersions();
  KeptVersions(const KeptVersions&) = delete;
  KeptVersions& operator=(const KeptVersions&) = delete;

 private:
  const std::vector<at::Tensor> tensors_;
  std::vector<std::uint32_t> versions_;
};

// A hash of the bits of a tensor on any device.
std::uint64_t hash_of_bits(const at::Tensor& tensor);

// When it ends, the version counters of those of `tensors` whose bits are as they were at its beginning are as they
// were, too: nobody takes a tensor for changed that was written with the values that it had.
class VersionsOfUnchanged {
 public:
  explicit VersionsOfUnchanged(std::vector<at::Tensor> tensors);
  ~VersionsOfUnchanged();
  VersionsOfUnchanged(const VersionsOfUnchanged&) = delete;
  VersionsOfUnchanged& operator=(const VersionsOfUnchanged&) = delete;

 private:
  struct Before {
    at::Tensor tensor;
    std::uint32_t version;
    std::uint64_t hash;
  };
  std::vector<Before> before_;
};

inline constexpr std::size_t kBroadcastChunkBytes = std::size_t{250} << 20;

// Copies the values of `tensors` from rank `root` to all ranks. Collective. Small tensors share a message of at most
// `chunk_bytes`; a larger tensor has a message of its own. All ranks pass tensors of the same sizes and dtypes.
void broadcast_values(ProcessGroup& group, const std::vector<at::Tensor>& tensors, int root = 0,
                      std::size_t chunk_bytes = kBroadcastChunkBytes);

// Returns the numbers of every rank, by rank. Collective; all ranks pass the same number of values.
std::vector<std::vector<std::int64_t>> gather_integers(ProcessGroup& group, std::vector<std::int64_t> values);

// Returns rank 0's `values` on all ranks. Collective; all ranks pass the same number of values.
std::vector<std::int64_t> broadcast_integers(ProcessGroup& group, std::vector<std::int64_t> values);

}  // namespace gradwire::internal
