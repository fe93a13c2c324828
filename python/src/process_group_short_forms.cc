// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// PyTorch's newer names of ProcessGroup's collectives, and its short forms, which take what the options would hold.
#include <optional>
#include <utility>

#include "binding.h"
#include "caller_frame.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/process_group.h"
#include "profiled.h"
#include "py_process_group.h"

namespace gradwire::python {
namespace {

// by_rank[rank][i] as [i][rank].
Lists by_input(const Lists& by_rank, std::size_t inputs) {
  Lists lists(inputs);
  for (const Tensors& outputs : by_rank) {
    if (outputs.size() != inputs) {
      throw InvalidArgument(concat("allgather_coalesced: a list of outputs has ", outputs.size(),
                                   " tensors, and there are ", inputs,
                                   " inputs; each rank's list needs one for each input"));
    }
    for (std::size_t i = 0; i < inputs; ++i) lists[i].push_back(outputs[i]);
  }
  return lists;
}

using Timeout = std::optional<Milliseconds>;  // none: the group's

template <class Options>
Options options_with(const Timeout& timeout) {
  Options options;
  if (timeout) options.timeout = *timeout;
  return options;
}
template <class Options>
Options options_with(const Timeout& timeout, int root) {
  auto options = options_with<Options>(timeout);
  options.root = root;
  return options;
}
template <class Options>
Options options_with(const Timeout& timeout, const ReduceOp& op) {
  auto options = options_with<Options>(timeout);
  options.op = op;
  return options;
}

// The lists of a gather or a scatter: none on the ranks that have none.
Lists lists_of(Tensors tensors) {
  Lists lists;
  if (!tensors.empty()) lists.push_back(std::move(tensors));
  return lists;
}

// Those with one root or none.
void bind_short_movements(ProcessGroupClass& group) {
  const auto timeout = [] { return py::arg("timeout") = py::none(); };
  group
      .def(
          "broadcast",
          [call = profiled("gradwire:broadcast", &ProcessGroup::broadcast)](
              ProcessGroup& self, const at::Tensor& tensor, int root, Timeout timeout) {
            return call(self, {tensor}, options_with<BroadcastOptions>(timeout, root));
          },
          py::arg("tensor"), py::arg("root"), timeout(), Calls())
      .def(
          "allgather",
          [call = profiled("gradwire:all_gather", &ProcessGroup::all_gather)](
              ProcessGroup& self, Tensors outputs, const at::Tensor& input, Timeout timeout) {
            return call(self, {std::move(outputs)}, {input}, options_with<AllGatherOptions>(timeout));
          },
          py::arg("output_tensors"), py::arg("input_tensor"), timeout(), Calls())
      .def(
          "gather",
          [call = profiled("gradwire:gather", &ProcessGroup::gather)](
              ProcessGroup& self, Tensors outputs, const at::Tensor& input, int root, Timeout timeout) {
            return call(self, lists_of(std::move(outputs)), {input}, options_with<GatherOptions>(timeout, root));
          },
          py::arg("output_tensors"), py::arg("input_tensor"), py::arg("root"), timeout(), Calls())
      .def(
          "scatter",
          [call = profiled("gradwire:scatter", &ProcessGroup::scatter)](ProcessGroup& self, const at::Tensor& output,
                                                                        Tensors inputs, int root, Timeout timeout) {
            return call(self, {output}, lists_of(std::move(inputs)), options_with<ScatterOptions>(timeout, root));
          },
          py::arg("output_tensor"), py::arg("input_tensors"), py::arg("root"), timeout(), Calls())
      .def(
          "alltoall",
          [call = profiled("gradwire:all_to_all", &ProcessGroup::all_to_all)](ProcessGroup& self, Tensors outputs,
                                                                              Tensors inputs, Timeout timeout) {
            return call(self, std::move(outputs), std::move(inputs), options_with<AllToAllOptions>(timeout));
          },
          py::arg("output_tensors"), py::arg("input_tensors"), timeout(), Calls())
      .def(
          "barrier",
          [call = profiled("gradwire:barrier", &ProcessGroup::barrier)](ProcessGroup& self, Timeout timeout) {
            return call(self, options_with<BarrierOptions>(timeout));
          },
          timeout(), Calls());
  for (const char* name : {"alltoall_base", "all_to_all_single"}) {
    group.def(
        name,
        [call = profiled("gradwire:all_to_all", &ProcessGroup::all_to_all_single)](
            ProcessGroup& self, const at::Tensor& output, const at::Tensor& input, Splits output_splits,
            Splits input_splits, Timeout timeout) {
          return call(self, output, input, std::move(output_splits), std::move(input_splits),
                      options_with<AllToAllOptions>(timeout));
        },
        py::arg("output"), py::arg("input"), py::arg("output_split_sizes") = Splits(),
        py::arg("input_split_sizes") = Splits(), timeout(), Calls());
  }
}

void bind_short_reductions(ProcessGroupClass& group) {
  const auto timeout = [] { return py::arg("timeout") = py::none(); };
  const auto op = [] { return py::arg("op") = ReduceOp::sum(); };
  const auto all_reduce = profiled("gradwire:all_reduce", &ProcessGroup::all_reduce);
  group
      .def(
          "allreduce",
          [all_reduce](ProcessGroup& self, Tensors tensors, const ReduceOp& op, Timeout timeout) {
            return all_reduce(self, std::move(tensors), options_with<AllReduceOptions>(timeout, op));
          },
          py::arg("tensors"), op(), timeout(), Calls())
      .def(
          "allreduce",
          [all_reduce](ProcessGroup& self, const at::Tensor& tensor, const ReduceOp& op, Timeout timeout) {
            return all_reduce(self, {tensor}, options_with<AllReduceOptions>(timeout, op));
          },
          py::arg("tensor"), op(), timeout(), Calls())
      .def(
          "reduce",
          [call = profiled("gradwire:reduce", &ProcessGroup::reduce)](ProcessGroup& self, const at::Tensor& tensor,
                                                                      int root, const ReduceOp& op, Timeout timeout) {
            auto options = options_with<ReduceOptions>(timeout, root);
            options.op = op;
            return call(self, {tensor}, options);
          },
          py::arg("tensor"), py::arg("root"), op(), timeout(), Calls())
      .def(
          "reduce_scatter",
          [call = profiled("gradwire:reduce_scatter", &ProcessGroup::reduce_scatter)](
              ProcessGroup& self, const at::Tensor& output, Tensors inputs, const ReduceOp& op, Timeout timeout) {
            return call(self, {output}, {std::move(inputs)}, options_with<ReduceScatterOptions>(timeout, op));
          },
          py::arg("output"), py::arg("input"), op(), timeout(), Calls());
}

}  // namespace

void bind_newer_names(ProcessGroupClass& group) {
  const auto opts = [](const auto& defaults) { return py::arg_v("opts", defaults, "..."); };
  group
      .def("all_gather_single", profiled("gradwire:all_gather", &ProcessGroup::all_gather_into_tensor),
           py::arg("output"), py::arg("input"), opts(AllGatherOptions()), Calls())
      .def("all_gather_single_coalesced",
           profiled("gradwire:all_gather", &ProcessGroup::all_gather_into_tensor_coalesced), py::arg("outputs"),
           py::arg("inputs"), opts(AllGatherOptions()), Calls())
      .def(
          "allgather_coalesced",
          [call = profiled("gradwire:all_gather", &ProcessGroup::all_gather)](
              ProcessGroup& self, const Lists& outputs, Tensors inputs, const AllGatherOptions& options) {
            Lists lists = by_input(outputs, inputs.size());
            return call(self, std::move(lists), std::move(inputs), options);
          },
          py::arg("output_lists"), py::arg("input_list"), opts(AllGatherOptions()), Calls(),
          "output_lists[rank][i] gets input_list[i] of that rank.")
      .def("reduce_scatter_single", profiled("gradwire:reduce_scatter", &ProcessGroup::reduce_scatter_tensor),
           py::arg("output"), py::arg("input"), opts(ReduceScatterOptions()), Calls())
      .def("reduce_scatter_single_coalesced",
           profiled("gradwire:reduce_scatter", &ProcessGroup::reduce_scatter_tensor_coalesced), py::arg("outputs"),
           py::arg("inputs"), opts(ReduceScatterOptions()), Calls())
      .def("all_to_all_single", profiled("gradwire:all_to_all", &ProcessGroup::all_to_all_single), py::arg("output"),
           py::arg("input"), py::arg("output_split_sizes") = Splits(), py::arg("input_split_sizes") = Splits(),
           opts(AllToAllOptions()), Calls());
}

void bind_short_forms(ProcessGroupClass& group) {
  bind_short_movements(group);
  bind_short_reductions(group);
}

}  // namespace gradwire::python
