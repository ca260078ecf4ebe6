#include <pybind11/numpy.h>

#include "bindings.hpp"
#include "metropolis/replay.hpp"

namespace py = pybind11;
using metropolis::Controller;
using metropolis::InstancePool;
using metropolis::Replay;

namespace {

template <typename T>
using Column = py::array_t<T, py::array::c_style>;

template <typename T>
std::span<const T> view(const Column<T>& column) {
  return {column.data(), static_cast<std::size_t>(column.size())};
}

template <typename T>
Column<T> copy(const std::vector<T>& values) {
  return Column<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

// Keeps the columns alive that the core only borrows.
struct BoundReplay {
  std::vector<py::array> columns;
  py::object controller;
  py::object instances;
  Replay replay;
};

}  // namespace

void bind_replay(py::module_& m) {
  py::class_<BoundReplay>(m, "Replay")
      .def(py::init(
               [](const Column<float>& positions, const Column<std::int64_t>& call_offsets,
                  const Column<metropolis::Step>& call_step,
                  const Column<metropolis::AgentId>& call_agent,
                  const Column<std::int64_t>& parent_offsets, const Column<std::int64_t>& parents,
                  const Column<std::int32_t>& prompt_tokens,
                  const Column<std::int32_t>& output_tokens, const Column<std::int64_t>& prefix_id,
                  const Column<std::int32_t>& prefix_tokens, py::object controller,
                  py::object instances, bool step_priority, std::int64_t max_outstanding) {
                 metropolis::TraceView trace;
                 trace.steps = static_cast<metropolis::Step>(positions.shape(0));
                 trace.agents = static_cast<metropolis::AgentId>(positions.shape(1));
                 trace.positions = view(positions);
                 trace.call_offsets = view(call_offsets);
                 trace.call_step = view(call_step);
                 trace.call_agent = view(call_agent);
                 trace.parent_offsets = view(parent_offsets);
                 trace.parents = view(parents);
                 trace.prompt_tokens = view(prompt_tokens);
                 trace.output_tokens = view(output_tokens);
                 trace.prefix_id = view(prefix_id);
                 trace.prefix_tokens = view(prefix_tokens);
                 return new BoundReplay{
                     {positions, call_offsets, call_step, call_agent, parent_offsets, parents,
                      prompt_tokens, output_tokens, prefix_id, prefix_tokens},
                     controller,
                     instances,
                     Replay(trace, controller.cast<Controller&>(), instances.cast<InstancePool&>(),
                            {step_priority, max_outstanding})};
               }),
           py::kw_only(), py::arg("positions"), py::arg("call_offsets"), py::arg("call_step"),
           py::arg("call_agent"), py::arg("parent_offsets"), py::arg("parents"),
           py::arg("prompt_tokens"), py::arg("output_tokens"), py::arg("prefix_id"),
           py::arg("prefix_tokens"), py::arg("controller"), py::arg("instances"),
           py::arg("step_priority"), py::arg("max_outstanding"))
      .def(
          "run", [](BoundReplay& self, std::int64_t n) { return self.replay.run(n); },
          py::arg("agent_steps"), py::call_guard<py::gil_scoped_release>())
      .def_property_readonly(
          "committed_agent_steps",
          [](const BoundReplay& self) { return self.replay.committed_agent_steps(); })
      .def_property_readonly("makespan_sim_s",
                             [](const BoundReplay& self) { return self.replay.makespan_sim_s(); })
      .def_property_readonly(
          "controller_wall_s",
          [](const BoundReplay& self) { return self.replay.controller_wall_s(); })
      .def("sent_sim_s",
           [](const BoundReplay& self) { return copy(self.replay.timeline().sent_sim_s); })
      .def("completed_sim_s",
           [](const BoundReplay& self) { return copy(self.replay.timeline().completed_sim_s); })
      .def("instance",
           [](const BoundReplay& self) { return copy(self.replay.timeline().instance); })
      .def("dispatched_sim_s",
           [](const BoundReplay& self) { return copy(self.replay.dispatched_sim_s()); })
      .def("committed_sim_s",
           [](const BoundReplay& self) { return copy(self.replay.committed_sim_s()); });
}
