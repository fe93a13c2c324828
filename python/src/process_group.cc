// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// ProcessGroup, which Python classes may derive from. The Python names and argument shapes are c10d's.
#include <ATen/Functions.h>
#include <pybind11/trampoline_self_life_support.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "binding.h"
#include "caller_frame.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/process_group.h"
#include "profiled.h"

namespace gradwire::python {
namespace {

using WorkPtr = std::shared_ptr<Work>;
using GroupPtr = std::shared_ptr<ProcessGroup>;
using Lists = std::vector<Tensors>;
using Splits = std::vector<std::int64_t>;

class PyProcessGroup final : public ProcessGroup, public py::trampoline_self_life_support {
 public:
  using ProcessGroup::ProcessGroup;

  bool supports(c10::DeviceType device) const override {
    const std::string name = c10::DeviceTypeName(device, true);
    return overridden(
        base(), "supports", cast<bool>, [&] { return ProcessGroup::supports(device); }, name);
  }
  void abort(const std::string& reason) override {
    overridden(
        base(), "abort", [](const py::object&) {}, [&] { ProcessGroup::abort(reason); });
  }
  void shutdown() override {
    overridden(
        base(), "shutdown", [](const py::object&) {}, [&] { ProcessGroup::shutdown(); });
  }

 protected:
  int get_rank() const override {
    return overridden(base(), "getRank", cast<int>, [&] { return ProcessGroup::get_rank(); });
  }
  int get_size() const override {
    return overridden(base(), "getSize", cast<int>, [&] { return ProcessGroup::get_size(); });
  }
  std::string get_backend_name() const override {
    return overridden(base(), "getBackendName", cast<std::string>, [&] { return ProcessGroup::get_backend_name(); });
  }
  std::string get_group_name() const override {
    return overridden(base(), "getGroupName", cast<std::string>, [&] { return ProcessGroup::get_group_name(); });
  }
  void do_set_group_name(const std::string& name) override {
    const auto otherwise = [&] { ProcessGroup::do_set_group_name(name); };
    overridden(
        base(), "setGroupName", [](const py::object&) {}, otherwise, name);
  }
  std::string get_group_desc() const override {
    return overridden(base(), "getGroupDesc", cast<std::string>, [&] { return ProcessGroup::get_group_desc(); });
  }
  void do_set_group_desc(const std::string& desc) override {
    const auto otherwise = [&] { ProcessGroup::do_set_group_desc(desc); };
    overridden(
        base(), "setGroupDesc", [](const py::object&) {}, otherwise, desc);
  }

  WorkPtr do_broadcast(Tensors& tensors, const BroadcastOptions& options) override {
    return work(
        "broadcast", [&] { return ProcessGroup::do_broadcast(tensors, options); }, tensors, options);
  }
  WorkPtr do_all_reduce(Tensors& tensors, const AllReduceOptions& options) override {
    return work(
        "allreduce", [&] { return ProcessGroup::do_all_reduce(tensors, options); }, tensors, options);
  }
  WorkPtr do_reduce(Tensors& tensors, const ReduceOptions& options) override {
    return work(
        "reduce", [&] { return ProcessGroup::do_reduce(tensors, options); }, tensors, options);
  }
  WorkPtr do_all_gather(Lists& outputs, Tensors& inputs, const AllGatherOptions& options) override {
    const auto otherwise = [&] { return ProcessGroup::do_all_gather(outputs, inputs, options); };
    return work("allgather", otherwise, outputs, inputs, options);
  }
  WorkPtr do_all_gather_into_tensor(at::Tensor& output, at::Tensor& input, const AllGatherOptions& options) override {
    const auto otherwise = [&] { return ProcessGroup::do_all_gather_into_tensor(output, input, options); };
    return work("_allgather_base", otherwise, output, input, options);
  }
  WorkPtr do_gather(Lists& outputs, Tensors& inputs, const GatherOptions& options) override {
    const auto otherwise = [&] { return ProcessGroup::do_gather(outputs, inputs, options); };
    return work("gather", otherwise, outputs, inputs, options);
  }
  WorkPtr do_scatter(Tensors& outputs, Lists& inputs, const ScatterOptions& options) override {
    const auto otherwise = [&] { return ProcessGroup::do_scatter(outputs, inputs, options); };
    return work("scatter", otherwise, outputs, inputs, options);
  }
  WorkPtr do_reduce_scatter(Tensors& outputs, Lists& inputs, const ReduceScatterOptions& options) override {
    const auto otherwise = [&] { return ProcessGroup::do_reduce_scatter(outputs, inputs, options); };
    return work("reduce_scatter", otherwise, outputs, inputs, options);
  }
  WorkPtr do_reduce_scatter_tensor(at::Tensor& output, at::Tensor& input,
                                   const ReduceScatterOptions& options) override {
    const auto otherwise = [&] { return ProcessGroup::do_reduce_scatter_tensor(output, input, options); };
    return work("_reduce_scatter_base", otherwise, output, input, options);
  }
  WorkPtr do_all_to_all(Tensors& outputs, Tensors& inputs, const AllToAllOptions& options) override {
    const auto otherwise = [&] { return ProcessGroup::do_all_to_all(outputs, inputs, options); };
    return work("alltoall", otherwise, outputs, inputs, options);
  }
  WorkPtr do_all_to_all_single(at::Tensor& output, at::Tensor& input, Splits& output_splits, Splits& input_splits,
                               const AllToAllOptions& options) override {
    const auto otherwise = [&] {
      return ProcessGroup::do_all_to_all_single(output, input, output_splits, input_splits, options);
    };
    return work("alltoall_base", otherwise, output, input, output_splits, input_splits, options);
  }
  WorkPtr do_barrier(const BarrierOptions& options) override {
    return work(
        "barrier", [&] { return ProcessGroup::do_barrier(options); }, options);
  }
  void do_monitored_barrier(Milliseconds timeout, bool wait_all) override {
    const auto otherwise = [&] { ProcessGroup::do_monitored_barrier(timeout, wait_all); };
    overridden(
        base(), "monitored_barrier", [](const py::object&) {}, otherwise, timeout, wait_all);
  }
  WorkPtr do_send(Tensors& tensors, int destination, int tag) override {
    return work(
        "send", [&] { return ProcessGroup::do_send(tensors, destination, tag); }, tensors, destination, tag);
  }
  WorkPtr do_recv(Tensors& tensors, int source, int tag) override {
    return work(
        "recv", [&] { return ProcessGroup::do_recv(tensors, source, tag); }, tensors, source, tag);
  }
  WorkPtr do_recv_anysource(Tensors& tensors, int tag) override {
    return work(
        "recv_anysource", [&] { return ProcessGroup::do_recv_anysource(tensors, tag); }, tensors, tag);
  }
  GroupPtr do_dup() override {
    return overridden(base(), "dup", cast<GroupPtr>, [&] { return ProcessGroup::do_dup(); });
  }
  GroupPtr do_split(int color, int key, const std::optional<std::string>& desc) override {
    const auto otherwise = [&] { return ProcessGroup::do_split(color, key, desc); };
    return overridden(base(), "split", cast<GroupPtr>, otherwise, color, key, desc);
  }
  at::Tensor do_allocate(std::int64_t numel, at::ScalarType dtype) override {
    const auto otherwise = [&] { return ProcessGroup::do_allocate(numel, dtype); };
    return overridden(base(), "allocate", cast<at::Tensor>, otherwise, numel, dtype);
  }

 private:
  const ProcessGroup* base() const noexcept { return this; }
  template <class T>
  static T cast(const py::object& object) {
    return object.cast<T>();
  }
  template <class Otherwise, class... Args>
  WorkPtr work(const char* name, const Otherwise& otherwise, Args&... args) {
    return overridden(base(), name, cast<WorkPtr>, otherwise, args...);
  }
};

using Class = py::class_<ProcessGroup, PyProcessGroup, py::smart_holder>;

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

void bind_identity(Class& group) {
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

void bind_collectives(Class& group) {
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

// PyTorch's newer names of some of them, and its short forms, which name what the options would hold.

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

// Those with one root or none.
void bind_short_movements(Class& group) {
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

void bind_short_reductions(Class& group) {
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

void bind_newer_names(Class& group) {
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

void bind_rest(Class& group) {
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
  Class group(module, "ProcessGroup", EndsUnlocked(), R"(A group of ranks.

Derive and override what you need: methods have c10d's names and argument shapes (`allreduce(tensors, opts)`,
`allgather(output_tensors, input_tensors, opts)`, `broadcast(tensors, opts)`, ...) and return a Work. What is not
overridden raises UnsupportedError. DistributedDataParallel works over a group that has just these three. C++ keeps a
group alive that Python has forgotten; the group can be referenced weakly.)");
  group.def(py::init<int, int>(), py::arg("rank"), py::arg("size"));
  bind_identity(group);
  bind_collectives(group);
  bind_newer_names(group);  // before the short forms: of overloads the first one that fits is taken
  bind_short_movements(group);
  bind_short_reductions(group);
  bind_rest(group);
}

}  // namespace gradwire::python
