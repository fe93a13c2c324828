// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Reductions and the options of the calls, with c10d's names for their fields.
#include <pybind11/operators.h>

#include <string>

#include "binding.h"
#include "gradwire/base/reduce_op.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::python {
namespace {

std::string upper(std::string_view name) {
  std::string out(name);
  for (char& letter : out) letter = static_cast<char>(letter >= 'a' && letter <= 'z' ? letter - 'a' + 'A' : letter);
  return out;
}

int number_of(const ReduceOp& op) { return static_cast<int>(op.kind); }

// Whether the number says all of it.
bool is_plain(const ReduceOp& op) { return op.kind != ReduceOp::Kind::premul_sum; }

ReduceOp op_from_pickle(const py::tuple& state) {
  return {static_cast<ReduceOp::Kind>(state[0].cast<int>()), state[1].cast<double>()};
}

template <class Options>
py::class_<Options> bind_common(py::module_& module, const char* name, const char* documentation) {
  return py::class_<Options>(module, name, documentation)
      .def(py::init<>())
      .def_readwrite("timeout", &Options::timeout, "A timedelta; zero: the group's.")
      .def_readwrite("asyncOp", &Options::async,
                     "False: the call may run at once on the calling thread, and return a completed Work.");
}

}  // namespace

void bind_reduce_op(py::module_& module) {
  py::class_<ReduceOp> op(module, "ReduceOp", R"(How elements of several ranks become one.

SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, and ReduceOp.premul_sum(factor), which multiplies each rank's elements by
`factor` first. Elements are combined in rank order, so all ranks get the same bits; float16 and bfloat16 are combined
in float32 and rounded once.)");
  op.def(py::init<const ReduceOp&>(), py::arg("op"), "The same reduction, as in PyTorch.")
      .def_static("premul_sum", &ReduceOp::premul_sum, py::arg("factor"), "A sum of products with `factor`.")
      .def_property_readonly(
          "name", [](const ReduceOp& self) { return upper(name_of(self.kind)); },
          "\"SUM\", \"AVG\", ...; \"PREMUL_SUM\".")
      .def_readonly("factor", &ReduceOp::factor, "Of premul_sum.")
      .def_property_readonly("value", &number_of, "The number of the kind, which is PyTorch's.")
      .def("__int__", &number_of)
      .def("__index__", &number_of)
      .def(py::self == py::self)
      .def(
          "__eq__", [](const ReduceOp& self, int number) { return is_plain(self) && number_of(self) == number; },
          py::is_operator())
      .def("__hash__",
           [](const ReduceOp& self) -> py::ssize_t {
             return is_plain(self) ? number_of(self) : py::hash(py::make_tuple(number_of(self), self.factor));
           })
      .def("__repr__",
           [](const ReduceOp& self) {
             const std::string name = upper(name_of(self.kind));
             return self.kind == ReduceOp::Kind::premul_sum ? concat("ReduceOp.", name, "(", self.factor, ")")
                                                            : concat("ReduceOp.", name);
           })
      .def("__copy__", [](const ReduceOp& self) { return self; })
      .def("__deepcopy__", [](const ReduceOp& self, const py::dict&) { return self; })
      .def(py::pickle([](const ReduceOp& self) { return py::make_tuple(static_cast<int>(self.kind), self.factor); },
                      &op_from_pickle));
  op.attr("RedOpType") = op;  // PyTorch's name for the type of ReduceOp.SUM
  using Kind = ReduceOp::Kind;
  for (const Kind kind : {Kind::sum, Kind::avg, Kind::product, Kind::min, Kind::max, Kind::band, Kind::bor, Kind::bxor})
    op.attr(upper(name_of(kind)).c_str()) = ReduceOp{kind};
}

void bind_options(py::module_& module) {
  bind_common<BroadcastOptions>(module, "BroadcastOptions", "Options of ProcessGroup.broadcast().")
      .def_readwrite("rootRank", &BroadcastOptions::root, "The rank whose tensors go out.")
      .def_readwrite("rootTensor", &BroadcastOptions::root_tensor, "Must be 0.");
  bind_common<AllReduceOptions>(module, "AllreduceOptions", "Options of ProcessGroup.allreduce().")
      .def_readwrite("reduceOp", &AllReduceOptions::op, "A ReduceOp.");
  bind_common<ReduceOptions>(module, "ReduceOptions", "Options of ProcessGroup.reduce().")
      .def_readwrite("reduceOp", &ReduceOptions::op, "A ReduceOp.")
      .def_readwrite("rootRank", &ReduceOptions::root, "The rank that gets the result.")
      .def_readwrite("rootTensor", &ReduceOptions::root_tensor, "Must be 0.");
  bind_common<AllGatherOptions>(module, "AllgatherOptions", "Options of ProcessGroup.allgather().");
  bind_common<GatherOptions>(module, "GatherOptions", "Options of ProcessGroup.gather().")
      .def_readwrite("rootRank", &GatherOptions::root, "The rank that gets the tensors.");
  bind_common<ScatterOptions>(module, "ScatterOptions", "Options of ProcessGroup.scatter().")
      .def_readwrite("rootRank", &ScatterOptions::root, "The rank whose tensors go out.");
  bind_common<ReduceScatterOptions>(module, "ReduceScatterOptions", "Options of ProcessGroup.reduce_scatter().")
      .def_readwrite("reduceOp", &ReduceScatterOptions::op, "A ReduceOp.");
  bind_common<AllToAllOptions>(module, "AllToAllOptions", "Options of ProcessGroup.alltoall().");
  bind_common<BarrierOptions>(module, "BarrierOptions", "Options of ProcessGroup.barrier().")
      .def_readwrite("device_ids", &BarrierOptions::device_ids, "As PyTorch has it; of no use here.");
  module.attr("AllreduceCoalescedOptions") = module.attr("AllreduceOptions");
}

}  // namespace gradwire::python
