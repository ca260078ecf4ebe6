#include <pybind11/stl.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "arguments.hpp"
#include "bindings.hpp"
#include "columns.hpp"
#include "metropolis/optimistic_replay.hpp"
#include "metropolis/replay.hpp"

namespace py = pybind11;
using namespace metropolis;
using namespace metropolis_bindings;

namespace {

struct BoundOptimism {
  BoundMetric metric;
  OptimisticOptions options;
};

// Keeps the columns alive that the core borrows, and copies of those that index others.
struct BoundReplay {
  Column<float> positions;
  Column<std::int64_t> call_offsets;
  Column<Step> call_step;
  Column<AgentId> call_agent;
  Column<std::int64_t> parent_offsets, parents;
  Column<std::int32_t> prompt_tokens, output_tokens;
  Column<std::int64_t> prefix_id;
  Column<std::int32_t> prefix_tokens;
  Column<std::int64_t> value_offsets;
  Column<AgentId> value_writers;
  Column<Step> value_ago;
  py::object controller;
  py::object instances;
  std::unique_ptr<TraceReplay> replay;

  TraceView trace() const {
    if (positions.shape(2) != 2 || positions.shape(0) > std::numeric_limits<Step>::max() ||
        positions.shape(1) > std::numeric_limits<AgentId>::max()) {
      throw py::value_error("positions must be an array of the shape (steps, agents, 2)");
    }
    TraceView trace;
    trace.steps = static_cast<Step>(positions.shape(0));
    trace.agents = static_cast<AgentId>(positions.shape(1));
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
    trace.value_offsets = view(value_offsets);
    trace.value_writers = view(value_writers);
    trace.value_ago = view(value_ago);
    return trace;
  }
};

std::unique_ptr<BoundReplay> make_replay(
    const py::object& positions, const py::object& call_offsets, const py::object& call_step,
    const py::object& call_agent, const py::object& parent_offsets, const py::object& parents,
    const py::object& prompt_tokens, const py::object& output_tokens, const py::object& prefix_id,
    const py::object& prefix_tokens, const py::object& value_offsets,
    const py::object& value_writers, const py::object& value_ago, const py::object& controller,
    const py::object& instances, bool step_priority, std::int64_t max_outstanding,
    const std::optional<BoundOptimism>& optimism) {
  auto bound = std::make_unique<BoundReplay>(BoundReplay{
      optimism ? fixed_column<float>(positions, "positions", 3)
               : column_of<float>(positions, "positions", 3),
      fixed_column<std::int64_t>(call_offsets, "call_offsets"),
      fixed_column<Step>(call_step, "call_step"), fixed_column<AgentId>(call_agent, "call_agent"),
      fixed_column<std::int64_t>(parent_offsets, "parent_offsets"),
      fixed_column<std::int64_t>(parents, "parents"),
      column_of<std::int32_t>(prompt_tokens, "prompt_tokens"),
      column_of<std::int32_t>(output_tokens, "output_tokens"),
      column_of<std::int64_t>(prefix_id, "prefix_id"),
      column_of<std::int32_t>(prefix_tokens, "prefix_tokens"),
      fixed_column<std::int64_t>(value_offsets, "value_offsets"),
      fixed_column<AgentId>(value_writers, "value_writers"),
      fixed_column<Step>(value_ago, "value_ago"), controller, instances, nullptr});
  auto& used = checked_cast<Controller>(controller, "controller", "a Controller");
  auto& pool = checked_cast<InstancePool>(instances, "instances", "an InstancePool");
  if (optimism) {
    if (max_outstanding != 0) {
      throw py::value_error("max_outstanding is " + std::to_string(max_outstanding) +
                            "; it must be 0 where agents run ahead");
    }
    OptimisticOptions options = optimism->options;
    options.step_priority = step_priority;
    bound->replay =
        make_optimistic_replay(bound->trace(), used, pool, optimism->metric.metric, options);
  } else {
    bound->replay = std::make_unique<Replay>(bound->trace(), used, pool,
                                             ReplayOptions{step_priority, max_outstanding});
  }
  return bound;
}

}  // namespace

void bind_replay(py::module_& m) {
  py::class_<BoundOptimism>(m, "Optimism", py::is_final())
      .def(py::init([](const BoundMetric& metric, double perception_radius, double max_velocity,
                       double cluster_radius, double risk_max, double calls_half) {
             return BoundOptimism{
                 metric,
                 {perception_radius, max_velocity, cluster_radius, risk_max, calls_half, true}};
           }),
           py::kw_only(), py::arg("metric"), py::arg("perception_radius"), py::arg("max_velocity"),
           py::arg("cluster_radius"), py::arg("risk_max"), py::arg("calls_half"));
  py::class_<BoundReplay>(m, "Replay", py::is_final())
      .def(py::init(&make_replay), py::kw_only(), py::arg("positions"), py::arg("call_offsets"),
           py::arg("call_step"), py::arg("call_agent"), py::arg("parent_offsets"),
           py::arg("parents"), py::arg("prompt_tokens"), py::arg("output_tokens"),
           py::arg("prefix_id"), py::arg("prefix_tokens"), py::arg("value_offsets"),
           py::arg("value_writers"), py::arg("value_ago"), py::arg("controller"),
           py::arg("instances"), py::arg("step_priority"), py::arg("max_outstanding"),
           py::arg("optimism") = std::nullopt)
      // Controller and instances belong to Python: holding the GIL keeps other threads from them.
      .def(
          "run", [](BoundReplay& self, std::int64_t n) { return self.replay->run(n); },
          py::arg("agent_steps"))
      .def_property_readonly(
          "committed_agent_steps",
          [](const BoundReplay& self) { return self.replay->committed_agent_steps(); })
      .def_property_readonly("makespan_sim_s",
                             [](const BoundReplay& self) { return self.replay->makespan_sim_s(); })
      .def_property_readonly(
          "controller_wall_s",
          [](const BoundReplay& self) { return self.replay->controller_wall_s(); })
      .def_property_readonly("sent_calls",
                             [](const BoundReplay& self) { return self.replay->sent_calls(); })
      .def("sent_sim_s",
           [](const BoundReplay& self) { return to_numpy(self.replay->timeline().sent_sim_s); })
      .def("first_token_sim_s",
           [](const BoundReplay& self) {
             return to_numpy(self.replay->timeline().first_token_sim_s);
           })
      .def(
          "preempted_sim_s",
          [](const BoundReplay& self) { return to_numpy(self.replay->timeline().preempted_sim_s); })
      .def(
          "completed_sim_s",
          [](const BoundReplay& self) { return to_numpy(self.replay->timeline().completed_sim_s); })
      .def("instance",
           [](const BoundReplay& self) { return to_numpy(self.replay->timeline().instance); })
      .def("dispatched_sim_s",
           [](const BoundReplay& self) { return to_numpy(self.replay->dispatched_sim_s()); })
      .def("committed_sim_s",
           [](const BoundReplay& self) { return to_numpy(self.replay->committed_sim_s()); })
      .def("blocked_by",
           [](const BoundReplay& self) { return to_numpy(self.replay->blocked_by()); })
      .def("cluster", [](const BoundReplay& self) { return to_numpy(self.replay->cluster()); })
      .def("wasted", [](const BoundReplay& self) { return to_numpy(self.replay->wasted()); });
}
