// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Elastic training, for the Python class around it.
#include "gradwire/elastic/elastic.h"

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "binding.h"

namespace gradwire::python {
namespace {

// Throws what the step raised, as Elastic::run() knows it: the errors that end an epoch are gradwire's own there, and
// Python's own stay what they are. So are those that end only the following of a newcomer.
[[noreturn]] void throw_error_of_step(py::error_already_set& raised, bool follows) {
  const py::module_ errors = py::module_::import("gradwire._errors");
  const auto is = [&](const char* name) { return raised.matches(errors.attr(name)); };
  const auto message = [&] { return py::str(raised.value()).cast<std::string>(); };
  const auto peers = [&] { return raised.value().attr("peers").cast<std::vector<int>>(); };
  if (is("PeerError")) throw PeerError(message(), peers());
  if (is("TimeoutError")) throw TimeoutError(message(), peers());
  if (is("AbortedError")) throw AbortedError(message());
  if (follows && is("MismatchError")) throw MismatchError(message());
  if (follows && is("UnsupportedError")) throw UnsupportedError(message());
  throw_python_error(raised);
}

std::unique_ptr<Elastic> make_elastic(std::shared_ptr<Store> store, std::string backend,
                                      std::optional<std::uint64_t> seed, bool leave_on_sigterm,
                                      Milliseconds hand_over_patience, std::string program, bool copy_before_step,
                                      bool shard_copies, std::string shard_checkpoint, std::optional<SlowRule> slow,
                                      py::object on_slow, bool follow, Milliseconds timeout) {
  std::function<void(const SlowMember&)> tell_slow;
  if (!on_slow.is_none()) {
    tell_slow = [held = HeldObject(std::move(on_slow))](const SlowMember& slow) {
      in_python([&] { held.get()(slow); });
    };
  }
  const WithoutLock unlocked;
  ElasticOptions options;
  options.store = std::move(store);
  options.backend = std::move(backend);
  options.seed = seed;
  options.leave_on_sigterm = leave_on_sigterm;
  options.hand_over_patience = hand_over_patience;
  options.program = std::move(program);
  options.copy_before_step = copy_before_step;
  options.shard_copies = shard_copies;
  options.shard_checkpoint = std::move(shard_checkpoint);
  options.slow = slow;
  options.on_slow = std::move(tell_slow);
  options.follow = follow;
  options.timeout = timeout;
  return std::make_unique<Elastic>(std::move(options));
}

void add_state(Elastic& self, std::string name, py::object save, py::object load) {
  self.add_state(
      std::move(name),
      [save = HeldObject(std::move(save))] { return in_python([&] { return save.get()().cast<std::string>(); }); },
      [load = HeldObject(std::move(load))](const std::string& bytes) {
        in_python([&] { load.get()(py::bytes(bytes)); });
      });
}

// `save` returns a pair of bytes and a list of tensors, which `load` gets.
void add_tensors(Elastic& self, std::string name, py::object save, py::object load) {
  self.add_state(
      std::move(name),
      [save = HeldObject(std::move(save))] {
        return in_python([&] {
          auto [text, tensors] = save.get()().cast<std::pair<std::string, std::vector<at::Tensor>>>();
          return StatePart{std::move(text), std::move(tensors)};
        });
      },
      [load = HeldObject(std::move(load))](const StatePart& part) {
        in_python([&] { load.get()(py::bytes(part.text), part.tensors); });
      });
}

// A ShardedState whose methods are those of a Python object (gradwire/distributed/optim/_elastic_shards.py).
class PythonShards final : public ShardedState {
 public:
  PythonShards(std::shared_ptr<ProcessGroup> group, py::object methods)
      : group_(std::move(group)), methods_(std::move(methods)) {}

  std::shared_ptr<ProcessGroup> sharding_group() const override { return group_; }
  std::string sharding_identity() const override { return call<std::string>("identity"); }
  std::vector<int> owners_among(int size) const override { return call<std::vector<int>>("owners_among", size); }
  void begin_step() override { call<void>("begin_step"); }
  std::vector<std::pair<at::Tensor, std::uint32_t>> undo_step() override {
    return call<std::vector<std::pair<at::Tensor, std::uint32_t>>>("undo_step");
  }
  std::vector<Holds> held(Version version) const override {
    std::vector<Holds> all;
    for (const char letter : call<std::string>("held", version == Version::undone))
      all.push_back(static_cast<Holds>(letter));
    return all;
  }
  std::string save_entries(const std::vector<std::size_t>& entries, Version version) const override {
    return call<std::string>("save_entries", entries, version == Version::undone);
  }
  std::string read_entries(const std::vector<std::size_t>& entries, const std::string& path) const override {
    return call<std::string>("read_entries", entries, path);
  }
  std::string new_entries(const std::vector<std::size_t>& entries) const override {
    return call<std::string>("new_entries", entries);
  }
  std::string save_common() const override { return call<std::string>("save_common"); }
  void load_common(const std::string& bytes) override {
    in_python([&] { methods_.get().attr("load_common")(py::bytes(bytes)); });
  }
  void deal(const Deal& deal) override {
    in_python([&] {
      py::list parcels;
      for (const Parcel& parcel : deal.parcels) parcels.append(py::make_tuple(parcel.entries, py::bytes(parcel.bytes)));
      methods_.get().attr("deal")(deal.rank, deal.size, deal.copies, deal.version == Version::undone, parcels);
    });
  }

 private:
  template <class Result, class... Args>
  Result call(const char* name, const Args&... args) const {
    return in_python([&]() -> Result {
      const py::object result = methods_.get().attr(name)(args...);
      if constexpr (!std::is_void_v<Result>) return result.template cast<Result>();
    });
  }

  const std::shared_ptr<ProcessGroup> group_;
  const HeldObject methods_;
};

std::string run(Elastic& self, std::int64_t steps, const py::object& step) {
  const WithoutLock unlocked;
  const ElasticEnd end = self.run(steps, [&](const ElasticStep& at) {
    const py::gil_scoped_acquire lock;
    try {
      step(at);
    } catch (py::error_already_set& raised) {
      throw_error_of_step(raised, at.follows);
    }
  });
  if (end == ElasticEnd::finished) return "finished";
  if (end == ElasticEnd::dropped) return "dropped";
  return end == ElasticEnd::left ? "left" : "too_late";
}

}  // namespace

void bind_elastic(py::module_& module) {
  py::class_<ElasticStep>(module, "ElasticStep", "The place of a call of the step function.")
      .def_readonly("step", &ElasticStep::step, "Counts from 0; each step counts once in the whole job.")
      .def_readonly("rank", &ElasticStep::rank, "Of this member in the present epoch.")
      .def_readonly("size", &ElasticStep::size, "The number of members in the present epoch.")
      .def_readonly("epoch", &ElasticStep::epoch, "The number of the present epoch, from 1.")
      .def_readonly("follows", &ElasticStep::follows,
                    "This member is a newcomer that follows the others; `rank` is that of the member whose results it "
                    "takes over. Compute, but write and print nothing.");
  py::class_<SlowRule>(module, "SlowRule", "When a rank is slow, and whether it is dropped then.")
      .def(py::init([](double factor, int steps, Milliseconds least, bool drop) {
             const SlowRule rule{.factor = factor, .steps = steps, .least = least, .drop = drop};
             membership::require_valid(rule);
             return rule;
           }),
           py::arg("factor") = SlowRule().factor, py::arg("steps") = SlowRule().steps,
           py::arg("least") = SlowRule().least, py::arg("drop") = false)
      .def_readonly("factor", &SlowRule::factor, "Of the median of the others' own times, above which a step is slow.")
      .def_readonly("steps", &SlowRule::steps, "How many steps in a row.")
      .def_readonly("least", &SlowRule::least, "The least difference from the median that counts.")
      .def_readonly("drop", &SlowRule::drop, "A slow rank leaves the job.");
  py::class_<SlowMember>(module, "SlowMember", "A member that is slow; times are means, in seconds.")
      .def_readonly("rank", &SlowMember::rank, "Of the member in the present epoch.")
      .def_readonly("host", &SlowMember::host, "The name of its host.")
      .def_readonly("step", &SlowMember::step, "The last of the steps.")
      .def_readonly("own_seconds", &SlowMember::own_seconds, "The member's own time of a step.")
      .def_readonly("others_seconds", &SlowMember::others_seconds, "The median of the others' own times.");
  py::class_<PythonShards>(module, "ShardedState", EndsUnlocked(),
                           "State of which each rank holds a part, by the methods of a Python object.")
      .def(py::init<std::shared_ptr<ProcessGroup>, py::object>(), py::arg("group"), py::arg("methods"));
  py::class_<Elastic>(module, "Elastic", EndsUnlocked(), "One member of an elastic job.")
      .def(py::init(&make_elastic), py::arg("store").none(true), py::arg("backend"), py::arg("seed"),
           py::arg("leave_on_sigterm"), py::arg("hand_over_patience"), py::arg("program"), py::arg("copy_before_step"),
           py::arg("shard_copies"), py::arg("shard_checkpoint"), py::arg("slow").none(true),
           py::arg("on_slow").none(true), py::arg("follow"), py::arg("timeout"))
      .def_property_readonly("group", [](const Elastic& self) -> std::shared_ptr<ProcessGroup> { return self.group(); })
      .def(
          "add_core", [](Elastic& self, DdpCore& core) { self.add(core); }, py::arg("core"), py::keep_alive<1, 2>())
      .def(
          "add_shards", [](Elastic& self, PythonShards& state) { self.add_shards(state); }, py::arg("state"),
          py::keep_alive<1, 2>())
      .def(
          "add_optimizer", [](Elastic& self, torch::optim::Optimizer& optimizer) { self.add(optimizer); },
          py::arg("optimizer"), py::keep_alive<1, 2>())
      .def("add_state", &add_state, py::arg("name"), py::arg("save"), py::arg("load"))
      .def("add_tensors", &add_tensors, py::arg("name"), py::arg("save"), py::arg("load"))
      .def("run", &run, py::arg("steps"), py::arg("step"))
      .def("leave", &Elastic::leave)
      .def("counted", &Elastic::counted);
}

}  // namespace gradwire::python
