// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The collectives of ProcessGroup: each checks its arguments, and then enters its virtual.
#include "gradwire/process_group/process_group.h"

#include <ATen/Functions.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/complex_half_internal.h"
#include "gradwire/process_group/expanded_tensors_internal.h"
#include "gradwire/process_group/group_record_internal.h"
#include "gradwire/process_group/labelled_work_internal.h"
#include "gradwire/process_group/lane_scope.h"
#include "gradwire/process_group/prepared_call_internal.h"
#include "gradwire/process_group/process_group_names_internal.h"
#include "gradwire/process_group/sparse_all_reduce_internal.h"
#include "gradwire/process_group/tensor_memory_internal.h"
#include "gradwire/process_group/validate_internal.h"
#include "gradwire/process_group/work_internal.h"

namespace gradwire {

using internal::any_complex_half;
using internal::any_expanded;
using internal::arguments_of;
using internal::as_halves;
using internal::call_with_copies;
using internal::copy_back;
using internal::is_complex_half;
using internal::NoOutputs;
using internal::Outputs;
using internal::PreparedCall;
using internal::Validator;
using internal::work_after;
using observe::CallKind;

namespace {

// `work`, whose future holds `outputs`: the tensors of the caller, where the call was made with views of them.
std::shared_ptr<Work> with_outputs(std::shared_ptr<Work> work, Outputs outputs) {
  return work_after(
      std::move(work), [] {}, std::move(outputs));
}

// Whether what one rank gets of a reduce_scatter is longer than what another gets.
bool is_uneven(const std::vector<Tensors>& inputs) {
  return std::any_of(inputs.begin(), inputs.end(), [](const Tensors& list) {
    return std::any_of(list.begin(), list.end(),
                       [&](const at::Tensor& each) { return each.numel() != list.front().numel(); });
  });
}

at::Tensor filled_up(const at::Tensor& tensor, std::int64_t elements) {
  return at::constant_pad_nd(tensor.reshape({-1}), {0, elements - tensor.numel()});
}

// Each part is filled up to the longest one.
std::shared_ptr<Work> reduce_scatter_uneven(ProcessGroup& group, const Validator& check, const Tensors& outputs,
                                            const std::vector<Tensors>& inputs, const ReduceScatterOptions& options) {
  const c10::NoGradGuard no_grad;
  const auto own = static_cast<std::size_t>(group.rank());
  Tensors results;
  std::vector<Tensors> parts(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check.same_length("inputs", inputs[i].size(), "ranks", static_cast<std::size_t>(group.size()));
    check.matches("outputs", outputs[i], inputs[i][own], inputs[i][own].numel());
    std::int64_t longest = 0;
    for (const at::Tensor& part : inputs[i]) longest = std::max(longest, part.numel());
    for (const at::Tensor& part : inputs[i]) parts[i].push_back(filled_up(part, longest));
    results.push_back(at::empty({longest}, outputs[i].options()));
  }
  auto work = group.reduce_scatter(results, std::move(parts), options);
  return work_after(
      std::move(work),
      [outputs, results] {
        for (std::size_t i = 0; i < outputs.size(); ++i)
          copy_back(outputs[i], results[i].narrow(0, 0, outputs[i].numel()).view(outputs[i].sizes()));
      },
      Outputs::list(outputs));
}

bool all_sparse(const Tensors& tensors) {
  return !tensors.empty() && std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.is_sparse();
  });
}

std::uint64_t others_of(const ProcessGroup& group) { return static_cast<std::uint64_t>(group.size()) - 1; }

// Splits of the rows of `tensor`, as splits of its elements.
std::vector<std::int64_t> elements_of(std::vector<std::int64_t> splits, const at::Tensor& tensor) {
  const std::int64_t row = c10::multiply_integers(tensor.sizes().slice(1));
  for (std::int64_t& split : splits) split *= row;
  return splits;
}

std::uint64_t bytes_of(const at::Tensor& tensor) { return static_cast<std::uint64_t>(tensor.nbytes()); }

std::uint64_t bytes_of(const Tensors& tensors) {
  std::uint64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += bytes_of(tensor);
  return bytes;
}

// Of `tensor`, without `own` of its rows.
std::uint64_t bytes_but(std::int64_t own, const at::Tensor& tensor) {
  const std::int64_t rows = tensor.dim() == 0 ? 0 : tensor.size(0);
  if (rows == 0) return 0;
  return bytes_of(tensor) / static_cast<std::uint64_t>(rows) * static_cast<std::uint64_t>(rows - own);
}

// Checks an exchange of rows whose shapes differ in input and output. It is made in elements, of which this rank
// expects `expected` and sends `sent` to itself.
void check_rows_apart(const Validator& check, const at::Tensor& output, std::int64_t expected, const at::Tensor& input,
                      std::int64_t sent) {
  if (!output.is_contiguous()) {
    check.fail(concat("the rows of the output have the shape ", output.sizes().slice(1), " and those of the input ",
                      input.sizes().slice(1), "; then the output must be contiguous"));
  }
  if (sent != expected) {
    check.fail(concat("this rank sends itself ", sent, " elements, in rows of the shape ", input.sizes().slice(1),
                      ", and expects ", expected, ", in rows of the shape ", output.sizes().slice(1)));
  }
}

}  // namespace

std::shared_ptr<Work> ProcessGroup::broadcast(Tensors tensors, const BroadcastOptions& options) {
  const Validator check(*this, "broadcast");
  check.timeout(options.timeout);
  check.tensors("tensors", tensors);
  check.root(options);
  if (any_expanded(tensors)) {
    return call_with_copies(here(), tensors, [&](const Tensors& copies) { return broadcast(copies, options); });
  }
  return enter(
      "broadcast", options, rank() == options.root ? others_of(*this) * bytes_of(tensors) : 0,
      PreparedCall{arguments_of(CallKind::broadcast, __builtin_return_address(0), tensors), tensors,
                   [&](ProcessGroup& group, const auto& settled) { return group.do_broadcast(tensors, settled); }});
}

std::shared_ptr<Work> ProcessGroup::all_reduce(Tensors tensors, const AllReduceOptions& options) {
  const Validator check(*this, "all_reduce");
  check.timeout(options.timeout);
  if (all_sparse(tensors)) {
    if (options.op != ReduceOp::sum())
      check.fail("sparse tensors have the sum alone; make them dense, with to_dense()");
    for (at::Tensor& tensor : tensors) internal::all_reduce_sparse(*this, tensor, options);
    return completed_work(std::move(tensors));
  }
  check.tensors("tensors", tensors);
  check.reduction(options.op, tensors);
  if (any_complex_half(tensors)) {
    require_by_parts(check, options.op, tensors);
    return with_outputs(all_reduce(as_halves(tensors), options), Outputs::list(tensors));
  }
  if (any_expanded(tensors)) {
    return call_with_copies(here(), tensors, [&](const Tensors& copies) { return all_reduce(copies, options); });
  }
  return enter(
      "all_reduce", options, 2 * others_of(*this) * bytes_of(tensors) / (others_of(*this) + 1),
      PreparedCall{arguments_of(CallKind::all_reduce, __builtin_return_address(0), tensors), tensors,
                   [&](ProcessGroup& group, const auto& settled) { return group.do_all_reduce(tensors, settled); }});
}

std::shared_ptr<Work> ProcessGroup::all_reduce_coalesced(Tensors tensors, const AllReduceOptions& options) {
  return all_reduce(std::move(tensors), options);
}

std::shared_ptr<Work> ProcessGroup::reduce(Tensors tensors, const ReduceOptions& options) {
  const Validator check(*this, "reduce");
  check.timeout(options.timeout);
  check.tensors("tensors", tensors);
  check.root(options);
  check.reduction(options.op, tensors);
  if (any_complex_half(tensors)) {
    require_by_parts(check, options.op, tensors);
    return with_outputs(reduce(as_halves(tensors), options), Outputs::list(tensors));
  }
  if (any_expanded(tensors)) {
    return call_with_copies(here(), tensors, [&](const Tensors& copies) { return reduce(copies, options); });
  }
  return enter(
      "reduce", options, rank() == options.root ? 0 : bytes_of(tensors),
      PreparedCall{arguments_of(CallKind::reduce, __builtin_return_address(0), tensors), tensors,
                   [&](ProcessGroup& group, const auto& settled) { return group.do_reduce(tensors, settled); }});
}

std::shared_ptr<Work> ProcessGroup::all_gather(std::vector<Tensors> outputs, Tensors inputs,
                                               const AllGatherOptions& options) {
  const Validator check(*this, "all_gather");
  check.timeout(options.timeout);
  check.tensors("inputs", inputs);
  check.lists("outputs", outputs, "inputs", inputs);
  for (const Tensors& list : outputs) check.outputs("outputs", list);
  return enter("all_gather", options, others_of(*this) * bytes_of(inputs),
               PreparedCall{arguments_of(CallKind::all_gather, __builtin_return_address(0), inputs), outputs,
                            [&](ProcessGroup& group, const auto& settled) {
                              return group.do_all_gather(outputs, inputs, settled);
                            }});
}

std::shared_ptr<Work> ProcessGroup::all_gather_into_tensor(at::Tensor output, at::Tensor input,
                                                           const AllGatherOptions& options) {
  const Validator check(*this, "all_gather_into_tensor");
  check.timeout(options.timeout);
  check.tensor("inputs", input);
  check.output("outputs", output);
  check.matches("outputs", output, input, input.numel() * size());
  return enter("all_gather_into_tensor", options, others_of(*this) * bytes_of(input),
               PreparedCall{arguments_of(CallKind::all_gather_into_tensor, __builtin_return_address(0), input), output,
                            [&](ProcessGroup& group, const auto& settled) {
                              return group.do_all_gather_into_tensor(output, input, settled);
                            }});
}

std::shared_ptr<Work> ProcessGroup::all_gather_into_tensor_coalesced(Tensors outputs, Tensors inputs,
                                                                     const AllGatherOptions& options) {
  const Validator check(*this, "all_gather_into_tensor_coalesced");
  check.tensors("inputs", inputs);
  check.outputs("outputs", outputs);
  check.same_length("outputs", outputs.size(), "inputs", inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i)
    check.matches("outputs", outputs[i], inputs[i], inputs[i].numel() * size());
  std::vector<std::shared_ptr<Work>> works;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    works.push_back(all_gather_into_tensor(outputs[i], inputs[i], options));
  return internal::work_of_all(std::move(works), internal::Outputs::list(std::move(outputs)));
}

std::shared_ptr<Work> ProcessGroup::gather(std::vector<Tensors> outputs, Tensors inputs, const GatherOptions& options) {
  const Validator check(*this, "gather");
  check.timeout(options.timeout);
  check.tensors("inputs", inputs);
  check.rank("the root", options.root);
  if (rank() == options.root) {
    check.lists("outputs", outputs, "inputs", inputs);
    for (const Tensors& list : outputs) check.outputs("outputs", list);
  } else if (!outputs.empty()) {
    check.fail(concat("outputs were given on a rank that is not the root, ", options.root));
  }
  return enter("gather", options, rank() == options.root ? 0 : bytes_of(inputs),
               PreparedCall{arguments_of(CallKind::gather, __builtin_return_address(0), inputs), outputs,
                            [&](ProcessGroup& group, const auto& settled) {
                              return group.do_gather(outputs, inputs, settled);
                            }});
}

std::shared_ptr<Work> ProcessGroup::scatter(Tensors outputs, std::vector<Tensors> inputs,
                                            const ScatterOptions& options) {
  const Validator check(*this, "scatter");
  check.timeout(options.timeout);
  check.outputs("outputs", outputs);
  check.rank("the root", options.root);
  if (rank() == options.root) {
    check.lists("inputs", inputs, "outputs", outputs);
  } else if (!inputs.empty()) {
    check.fail(concat("inputs were given on a rank that is not the root, ", options.root));
  }
  return enter("scatter", options, rank() == options.root ? others_of(*this) * bytes_of(outputs) : 0,
               PreparedCall{arguments_of(CallKind::scatter, __builtin_return_address(0), outputs), outputs,
                            [&](ProcessGroup& group, const auto& settled) {
                              return group.do_scatter(outputs, inputs, settled);
                            }});
}

std::shared_ptr<Work> ProcessGroup::reduce_scatter(Tensors outputs, std::vector<Tensors> inputs,
                                                   const ReduceScatterOptions& options) {
  const Validator check(*this, "reduce_scatter");
  check.timeout(options.timeout);
  check.outputs("outputs", outputs);
  const bool uneven = is_uneven(inputs);
  if (uneven) {
    check.same_length("lists of inputs", inputs.size(), "outputs", outputs.size());
    for (const Tensors& list : inputs) check.tensors("inputs", list);
  } else {
    check.lists("inputs", inputs, "outputs", outputs);
  }
  check.reduction(options.op, outputs);
  if (any_complex_half(outputs)) {
    require_by_parts(check, options.op, outputs);
    for (Tensors& list : inputs) {
      require_by_parts(check, options.op, list);
      list = as_halves(list);
    }
    return with_outputs(reduce_scatter(as_halves(outputs), std::move(inputs), options), Outputs::list(outputs));
  }
  if (uneven) return reduce_scatter_uneven(*this, check, outputs, inputs, options);
  return enter("reduce_scatter", options, others_of(*this) * bytes_of(outputs),
               PreparedCall{arguments_of(CallKind::reduce_scatter, __builtin_return_address(0), outputs), outputs,
                            [&](ProcessGroup& group, const auto& settled) {
                              return group.do_reduce_scatter(outputs, inputs, settled);
                            }});
}

std::shared_ptr<Work> ProcessGroup::reduce_scatter_tensor(at::Tensor output, at::Tensor input,
                                                          const ReduceScatterOptions& options) {
  const Validator check(*this, "reduce_scatter_tensor");
  check.timeout(options.timeout);
  check.output("outputs", output);
  check.tensor("inputs", input);
  check.matches("inputs", input, output, output.numel() * size());
  check.reduction(options.op, output);
  if (is_complex_half(output)) {
    require_by_parts(check, options.op, {output, input});
    const Tensors halves = as_halves({output, input});
    return with_outputs(reduce_scatter_tensor(halves[0], halves[1], options), Outputs::one(output));
  }
  return enter("reduce_scatter_tensor", options, others_of(*this) * bytes_of(output),
               PreparedCall{arguments_of(CallKind::reduce_scatter_tensor, __builtin_return_address(0), output), output,
                            [&](ProcessGroup& group, const auto& settled) {
                              return group.do_reduce_scatter_tensor(output, input, settled);
                            }});
}

std::shared_ptr<Work> ProcessGroup::reduce_scatter_tensor_coalesced(Tensors outputs, Tensors inputs,
                                                                    const ReduceScatterOptions& options) {
  const Validator check(*this, "reduce_scatter_tensor_coalesced");
  check.outputs("outputs", outputs);
  check.tensors("inputs", inputs);
  check.same_length("inputs", inputs.size(), "outputs", outputs.size());
  check.reduction(options.op, outputs);
  for (std::size_t i = 0; i < outputs.size(); ++i)
    check.matches("inputs", inputs[i], outputs[i], outputs[i].numel() * size());
  std::vector<std::shared_ptr<Work>> works;
  for (std::size_t i = 0; i < outputs.size(); ++i)
    works.push_back(reduce_scatter_tensor(outputs[i], inputs[i], options));
  return internal::work_of_all(std::move(works), internal::Outputs::list(std::move(outputs)));
}

std::shared_ptr<Work> ProcessGroup::all_to_all(Tensors outputs, Tensors inputs, const AllToAllOptions& options) {
  const Validator check(*this, "all_to_all");
  check.timeout(options.timeout);
  check.outputs("outputs", outputs);
  check.tensors("inputs", inputs);
  check.same_length("outputs", outputs.size(), "ranks", static_cast<std::size_t>(size()));
  check.same_length("inputs", inputs.size(), "ranks", static_cast<std::size_t>(size()));
  for (const at::Tensor& output : outputs) check.matches("outputs", output, inputs.front(), output.numel());
  for (const at::Tensor& input : inputs) check.matches("inputs", input, inputs.front(), input.numel());
  const auto self = static_cast<std::size_t>(rank());
  check.matches("outputs", outputs[self], inputs[self], inputs[self].numel());
  return enter("all_to_all", options, bytes_of(inputs) - bytes_of(inputs[self]),
               PreparedCall{arguments_of(CallKind::all_to_all, __builtin_return_address(0), inputs), outputs,
                            [&](ProcessGroup& group, const auto& settled) {
                              return group.do_all_to_all(outputs, inputs, settled);
                            }});
}

std::shared_ptr<Work> ProcessGroup::all_to_all_single(at::Tensor output, at::Tensor input,
                                                      std::vector<std::int64_t> output_splits,
                                                      std::vector<std::int64_t> input_splits,
                                                      const AllToAllOptions& options) {
  const Validator check(*this, "all_to_all_single");
  check.timeout(options.timeout);
  check.output("outputs", output);
  check.tensor("inputs", input);
  check.matches("outputs", output, input, output.numel());
  check.splits("output", output_splits, output);
  check.splits("input", input_splits, input);
  const auto self = static_cast<std::size_t>(rank());
  if (output.sizes().slice(1) != input.sizes().slice(1)) {
    std::vector<std::int64_t> output_elements = elements_of(std::move(output_splits), output);
    std::vector<std::int64_t> input_elements = elements_of(std::move(input_splits), input);
    check_rows_apart(check, output, output_elements[self], input, input_elements[self]);
    auto work = all_to_all_single(output.detach().view({-1}), input.detach().reshape({-1}), std::move(output_elements),
                                  std::move(input_elements), options);
    return with_outputs(std::move(work), Outputs::one(output));
  }
  if (output_splits[self] != input_splits[self]) {
    check.fail(concat("this rank sends itself ", input_splits[self], " rows and expects ", output_splits[self]));
  }
  if (at::get_overlap_status(output, input) != at::MemOverlapStatus::No) {
    input = internal::copied_in_turn(here(), input);
  }
  return enter("all_to_all_single", options, bytes_but(input_splits[self], input),
               PreparedCall{arguments_of(CallKind::all_to_all_single, __builtin_return_address(0), input), output,
                            [&](ProcessGroup& group, const auto& settled) {
                              return group.do_all_to_all_single(output, input, output_splits, input_splits, settled);
                            }});
}

std::shared_ptr<Work> ProcessGroup::barrier(const BarrierOptions& options) {
  Validator(*this, "barrier").timeout(options.timeout);
  return enter("barrier", options, 0,
               PreparedCall{arguments_of(CallKind::barrier, __builtin_return_address(0)), NoOutputs(),
                            [&](ProcessGroup& group, const auto& settled) { return group.do_barrier(settled); }});
}

void ProcessGroup::monitored_barrier(Milliseconds timeout, bool wait_all) {
  Validator(*this, "monitored_barrier").timeout(timeout);
  ProcessGroup& group = here();
  const LaneScope::Pause within_the_group;
  const auto flight =
      group.names_->record.begin(group, arguments_of(CallKind::monitored_barrier, __builtin_return_address(0)));
  // Without the record: its messages must not end it.
  const internal::LabelledCall labelled(
      {"monitored_barrier", group.rank(), group.size(), observe::FlightCall(), Deadline::Clock::now()});
  internal::recorded(flight,
                     [&] { group.do_monitored_barrier(timeout.count() == 0 ? group.timeout() : timeout, wait_all); });
}

}  // namespace gradwire
