// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// ProcessGroup in Python. The names and argument shapes are c10d's.
#include <ATen/Functions.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "binding.h"
#include "caller_frame.h"
#include "gradwire/process_group/process_group.h"
#include "profiled.h"
#include "py_process_group.h"

namespace gradwire::python {
namespace {

// `made` as Python's, which is told the ranks of `parent` that it has.
py::object with_ranks(ProcessGroup& parent, const GroupPtr& made, const std::vector<std::int64_t>& ranks) {
  py::object object = py::cast(made);
  if (!ranks.empty())
    py::module_::import("gradwire.distributed._groups").attr("_note_ranks")(parent.shared_from_this(), object, ranks);
  return object;
}

py::object dup(ProcessGroup& group) {
  const CallerFrame caller;
  GroupPtr made;
  std::vector<std::int64_t> ranks;
  {
    const WithoutLock unlocked;
    made = ending_unlocked(group.dup());
    if (made != nullptr) ranks.resize(static_cast<std::size_t>(group.size()));
    std::iota(ranks.begin(), ranks.end(), std::int64_t{0});
  }
  return with_ranks(group, made, ranks);
}

// The ranks of `group` that `part` has; collective in the part.
std::vector<std::int64_t> ranks_in(ProcessGroup& group, ProcessGroup& part) {
  at::Tensor ranks = at::empty({part.size()}, at::TensorOptions(at::kLong));
  AllGatherOptions options;
  options.async = false;
  part.all_gather_into_tensor(ranks, at::full({1}, group.rank(), ranks.options()), options)->wait();
  const auto* const first = ranks.const_data_ptr<std::int64_t>();
  return {first, first + part.size()};
}

py::object split(ProcessGroup& group, int color, int key, std::optional<std::string> desc) {
  const CallerFrame caller;
  GroupPtr made;
  std::vector<std::int64_t> ranks;
  {
    const WithoutLock unlocked;
    made = ending_unlocked(group.split(color, key, std::move(desc)));
    const bool is_ours = made != nullptr && dynamic_cast<const PyProcessGroup*>(made.get()) == nullptr;
    if (is_ours) ranks = ranks_in(group, *made);
  }
  return with_ranks(group, made, ranks);
}

// PyTorch's 0: no time at all. Ours: the group's.
void monitored_barrier(ProcessGroup& group, Milliseconds timeout, bool wait_all) {
  group.monitored_barrier(std::max(timeout, Milliseconds{1}), wait_all);
}

void bind_identity(ProcessGroupClass& group) {
  group.def("rank", &ProcessGroup::rank, Unlocked(), "This process's number in the group, from 0.")
      .def("size", &ProcessGroup::size, Unlocked(), "How many ranks the group has.")
      .def("name", &ProcessGroup::name, Unlocked(), "The name of the backend.")
      .def("getRank", &ProcessGroup::rank, Unlocked(), "rank(), to override.")
      .def("getSize", &ProcessGroup::size, Unlocked(), "size(), to override.")
      .def("_get_backend_name", &ProcessGroup::name, Unlocked())
      .def("getBackendName", &ProcessGroup::name, Unlocked(), "name(), to override.")
      .def("getGroupName", &ProcessGroup::group_name, Unlocked(), "group_name, to override.")
      .def("setGroupName", &ProcessGroup::set_group_name, py::arg("name"), Unlocked())
      .def("getGroupDesc", &ProcessGroup::group_desc, Unlocked(), "group_desc, to override.")
      .def("setGroupDesc", &ProcessGroup::set_group_desc, py::arg("group_desc"), Unlocked())
      .def_property_readonly("group_name", &ProcessGroup::group_name, "The group's own name.")
      .def_property_readonly("group_desc", &ProcessGroup::group_desc, "What the group is for.")
      .def("_set_group_name", &ProcessGroup::set_group_name, py::arg("name"), Unlocked())
      .def("_set_group_desc", &ProcessGroup::set_group_desc, py::arg("desc"), Unlocked())
      .def_property("timeout", &ProcessGroup::timeout, &ProcessGroup::set_timeout,
                    "A timedelta: how long calls without a timeout of their own may take.")
      .def("set_timeout", &ProcessGroup::set_timeout, py::arg("timeout"), "Sets `timeout`.")
      .def("_set_default_timeout", &ProcessGroup::set_timeout, py::arg("timeout"))
      .def_property_readonly(
          "bound_device_id", [](const ProcessGroup&) { return py::none(); }, "None: groups are bound to no device.")
      .def(
          "supports",
          [](const ProcessGroup& self, const std::string& type) { return self.supports(c10::Device(type).type()); },
          py::arg("device_type"), Unlocked(), "Whether collectives work on tensors of 'cpu', 'cuda', ...")
      .def("payload_bytes", &ProcessGroup::payload_bytes,
           "The bytes that this rank's collectives so far have to send by the textbook algorithm.");
}

void bind_collectives(ProcessGroupClass& group) {
  const auto opts = [](const auto& defaults) { return py::arg_v("opts", defaults, "..."); };
  group
      .def("broadcast", profiled("gradwire:broadcast", &ProcessGroup::broadcast), py::arg("tensors"),
           opts(BroadcastOptions()), Calls(), "opts.rootRank's tensors on every rank, in place.")
      .def("allreduce", profiled("gradwire:all_reduce", &ProcessGroup::all_reduce), py::arg("tensors"),
           opts(AllReduceOptions()), Calls(),
           "The reduction of all ranks' tensors, in place and bit for bit the same on every rank.")
      .def("allreduce_coalesced", profiled("gradwire:all_reduce", &ProcessGroup::all_reduce_coalesced),
           py::arg("tensors"), opts(AllReduceOptions()), Calls(), "allreduce of several tensors at once.")
      .def("reduce", profiled("gradwire:reduce", &ProcessGroup::reduce), py::arg("tensors"), opts(ReduceOptions()),
           Calls(), "The reduction on opts.rootRank; what the other ranks' tensors hold afterwards is not defined.")
      .def("allgather", profiled("gradwire:all_gather", &ProcessGroup::all_gather), py::arg("output_tensors"),
           py::arg("input_tensors"), opts(AllGatherOptions()), Calls(), "One list of size() outputs for each input.")
      .def("_allgather_base", profiled("gradwire:all_gather", &ProcessGroup::all_gather_into_tensor), py::arg("output"),
           py::arg("input"), opts(AllGatherOptions()), Calls(), "All ranks' tensors, one after another, in one output.")
      .def("allgather_into_tensor_coalesced",
           profiled("gradwire:all_gather", &ProcessGroup::all_gather_into_tensor_coalesced), py::arg("outputs"),
           py::arg("inputs"), opts(AllGatherOptions()), Calls())
      .def("gather", profiled("gradwire:gather", &ProcessGroup::gather), py::arg("output_tensors"),
           py::arg("input_tensors"), opts(GatherOptions()), Calls(),
           "All ranks' tensors on opts.rootRank; no outputs elsewhere.")
      .def("scatter", profiled("gradwire:scatter", &ProcessGroup::scatter), py::arg("output_tensors"),
           py::arg("input_tensors"), opts(ScatterOptions()), Calls(),
           "One tensor of opts.rootRank's lists to each rank; no inputs elsewhere.")
      .def("reduce_scatter", profiled("gradwire:reduce_scatter", &ProcessGroup::reduce_scatter),
           py::arg("output_tensors"), py::arg("input_tensors"), opts(ReduceScatterOptions()), Calls(),
           "The reduction of all ranks' inputs[rank()].")
      .def("_reduce_scatter_base", profiled("gradwire:reduce_scatter", &ProcessGroup::reduce_scatter_tensor),
           py::arg("output"), py::arg("input"), opts(ReduceScatterOptions()), Calls())
      .def("reduce_scatter_tensor_coalesced",
           profiled("gradwire:reduce_scatter", &ProcessGroup::reduce_scatter_tensor_coalesced), py::arg("outputs"),
           py::arg("inputs"), opts(ReduceScatterOptions()), Calls())
      .def("alltoall", profiled("gradwire:all_to_all", &ProcessGroup::all_to_all), py::arg("output_tensors"),
           py::arg("input_tensors"), opts(AllToAllOptions()), Calls(),
           "inputs[i] goes to rank i, outputs[i] comes from it.")
      .def("alltoall_base", profiled("gradwire:all_to_all", &ProcessGroup::all_to_all_single), py::arg("output"),
           py::arg("input"), py::arg("output_split_sizes") = Splits(), py::arg("input_split_sizes") = Splits(),
           opts(AllToAllOptions()), Calls(),
           "The same on one tensor, split along dimension 0; empty splits: even ones.")
      .def("barrier", profiled("gradwire:barrier", &ProcessGroup::barrier), opts(BarrierOptions()), Calls(),
           "Ends when all ranks have come.")
      .def("monitored_barrier", &monitored_barrier, py::arg("timeout"), py::arg("wait_all_ranks") = false, Calls(),
           "Rank 0 names the ranks that did not come within `timeout`; the group goes on.");
}

void bind_rest(ProcessGroupClass& group) {
  group
      .def("send", profiled("gradwire:send", &ProcessGroup::send, /*is_message=*/true), py::arg("tensors"),
           py::arg("dstRank"), py::arg("tag") = 0, Calls())
      .def("recv", profiled("gradwire:recv", &ProcessGroup::recv, /*is_message=*/true), py::arg("tensors"),
           py::arg("srcRank"), py::arg("tag") = 0, Calls())
      .def("recv_anysource", profiled("gradwire:recvAnySource", &ProcessGroup::recv_anysource, /*is_message=*/true),
           py::arg("tensors"), py::arg("tag") = 0, Calls())
      .def("dup", &dup,
           "A group of the same ranks with an ordered sequence of its own; collective. None where there is none.")
      .def("split", &split, py::arg("color"), py::arg("key") = 0, py::arg("desc") = py::none(),
           "Groups of the ranks with the same color, ordered by key; collective. None for a negative color.")
      .def("allocate", &ProcessGroup::allocate, py::arg("numel"), py::arg("dtype"), Calls(),
           "Zeroed 1-D memory that this group communicates fastest with; collective.")
      .def(
          "abort", [](ProcessGroup& self) { self.abort(); }, Unlocked(),
          "Ends the group on this rank: waiting calls and every later one raise. Does nothing unless overridden.")
      .def("abort", &ProcessGroup::abort, py::arg("reason"), Unlocked())
      .def("shutdown", &ProcessGroup::shutdown, Unlocked(), "Ends the group well. Does nothing unless overridden.");
}

}  // namespace

void bind_process_group(py::module_& module) {
  follow_callers();
  ProcessGroupClass group(module, "ProcessGroup", EndsUnlocked(), R"(A group of ranks.

Derive and override what you need: methods have c10d's names and argument shapes (`allreduce(tensors, opts)`,
`allgather(output_tensors, input_tensors, opts)`, `broadcast(tensors, opts)`, ...) and return a Work. What is not
overridden raises UnsupportedError. DistributedDataParallel works over a group that has just these three. C++ keeps a
group alive that Python has forgotten; the group can be referenced weakly.)");
  group.def(py::init<int, int>(), py::arg("rank"), py::arg("size"));
  bind_identity(group);
  bind_collectives(group);
  bind_newer_names(group);  // before the short forms: of overloads the first one that fits is taken
  bind_short_forms(group);
  bind_rest(group);
}

}  // namespace gradwire::python
