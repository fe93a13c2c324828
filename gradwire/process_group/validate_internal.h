// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The checks that every call on a group makes before any communication starts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// Checks the arguments of one call. Every method throws InvalidArgument that names the rank, the operation and the
// group.
class Validator {
 public:
  // Both must outlive this object.
  Validator(const ProcessGroup& group, std::string_view operation);

  [[noreturn]] void fail(const std::string& what) const;

  // Not negative.
  void timeout(Milliseconds timeout) const;
  void rank(const char* what, int rank) const;
  void root(const BroadcastOptions& options) const;
  void root(const ReduceOptions& options) const;
  // Not empty, and every tensor as below.
  void tensors(const char* what, const Tensors& tensors) const;
  // Defined, dense, on a device the group serves, of a type whose elements can be moved.
  void tensor(const char* what, const at::Tensor& tensor) const;
  // As tensors(), and no two elements of a tensor share memory.
  void outputs(const char* what, const Tensors& tensors) const;
  void output(const char* what, const at::Tensor& tensor) const;
  // `op` is defined on the type of every tensor. Types that gradwire does not know are left to the group.
  void reduction(ReduceOp op, const at::Tensor& tensor) const;
  void reduction(ReduceOp op, const Tensors& tensors) const;
  // Every tensor is of a type that gradwire reduces.
  void reducible(const at::Tensor& tensor) const;
  void reducible(const Tensors& tensors) const;
  // The same dtype, and `expected` elements in `tensor`.
  void matches(const char* what, const at::Tensor& tensor, const at::Tensor& model, std::int64_t expected) const;
  void same_length(const char* what, std::size_t length, const char* than, std::size_t expected) const;
  // For each model one list of `what`, with size() tensors like the model.
  void lists(const char* what, const std::vector<Tensors>& lists, const char* model_name, const Tensors& models) const;
  // Rows that go to each rank; empty splits become even ones.
  void splits(const char* what, std::vector<std::int64_t>& splits, const at::Tensor& tensor) const;

 private:
  const ProcessGroup& group_;
  std::string_view operation_;
};

// How much longer than its timeout a rank waits in a monitored barrier for the report of rank 0, which waits for the
// timeout too.
Milliseconds grace_for_report(Milliseconds timeout);

// The errors of a monitored barrier: where ranks died, or did not come in time; and on the ranks to which rank 0 did
// not report.
[[noreturn]] void throw_missing(const ProcessGroup& group, const std::vector<int>& late, const std::vector<int>& dead,
                                Milliseconds timeout, bool wait_all);
[[noreturn]] void throw_no_report(const ProcessGroup& group, Milliseconds timeout);

// Throws InvalidArgument where `work` is null: the group, of a class of the user's, returned no Work for `operation`.
void require_work(const std::shared_ptr<Work>& work, const ProcessGroup& group, const char* operation);

// Returns the name of a group for messages: "rank 0 of group 'default' (shm)".
std::string name_group(const ProcessGroup& group);

}  // namespace gradwire::internal
