#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "bindings.hpp"
#include "metropolis/speculation.hpp"
#include "metropolis/speculation_bench.hpp"

namespace py = pybind11;
using namespace metropolis;
using namespace metropolis_bindings;
using namespace pybind11::literals;

namespace {

using SightingTuple = std::tuple<EntityId, double, double, Digest>;
using ReadTuple = std::tuple<int, EntityId, double, double, double, std::vector<SightingTuple>>;
using ForecastTuple = std::pair<AgentId, std::vector<std::tuple<double, double, Digest>>>;
using WriteTuple = std::tuple<EntityId, std::optional<std::tuple<double, double, Digest>>>;

Sighting sighting_of(const SightingTuple& given) {
  const auto& [entity, x, y, digest] = given;
  return {entity, {x, y}, digest};
}

std::vector<Sighting> sightings_of(const std::vector<SightingTuple>& given) {
  std::vector<Sighting> sightings;
  sightings.reserve(given.size());
  for (const SightingTuple& one : given) sightings.push_back(sighting_of(one));
  return sightings;
}

Reads reads_of(const std::vector<ReadTuple>& given) {
  Reads reads;
  reads.reserve(given.size());
  for (const auto& [kind, entity, x, y, radius, answer] : given) {
    if (kind < 0 || kind > 2) throw py::value_error("the kind of a question is 0, 1 or 2");
    const Question question{static_cast<Question::Kind>(kind), entity, {x, y}, radius};
    reads.push_back({question, sightings_of(answer)});
  }
  return reads;
}

std::vector<Write> writes_of(const std::vector<WriteTuple>& given) {
  std::vector<Write> writes;
  writes.reserve(given.size());
  for (const auto& [entity, value] : given) {
    Write write{entity, std::nullopt};
    if (value) {
      const auto& [x, y, digest] = *value;
      write.value = Sighting{entity, {x, y}, digest};
    }
    writes.push_back(write);
  }
  return writes;
}

std::vector<Mind> minds_of(const std::vector<std::pair<AgentId, Digest>>& given) {
  std::vector<Mind> minds;
  minds.reserve(given.size());
  for (const auto& [agent, digest] : given) minds.push_back({agent, digest});
  return minds;
}

std::vector<Forecast> forecasts_of(const std::vector<ForecastTuple>& given) {
  std::vector<Forecast> forecasts;
  forecasts.reserve(given.size());
  for (const auto& [agent, bodies] : given) {
    Forecast& one = forecasts.emplace_back(Forecast{agent, {}});
    for (const auto& [x, y, digest] : bodies) one.bodies.push_back({0, {x, y}, digest});
  }
  return forecasts;
}

py::list commands_of(const std::vector<SpeculationCommand>& commands) {
  py::list found(commands.size());
  for (std::size_t i = 0; i < commands.size(); ++i) {
    const SpeculationCommand& one = commands[i];
    found[i] = py::make_tuple(static_cast<int>(one.kind), one.id, one.step,
                              py::tuple(py::cast(one.agents)), py::tuple(py::cast(one.proceeds)),
                              one.mind, one.sure);
  }
  return found;
}

// Keeps the controller alive that the core borrows.
struct BoundSpeculation {
  py::object controller;
  std::unique_ptr<Speculation> core;
  AgentId agents;
};

std::unique_ptr<BoundSpeculation> make_bound(const py::object& controller,
                                             const BoundMetric& metric, double perception_radius,
                                             double cluster_radius, Step target_step,
                                             const std::vector<EntityId>& bodies,
                                             const std::vector<SightingTuple>& entities,
                                             const std::vector<Digest>& minds) {
  auto& borrowed = checked_cast<Controller>(controller, "controller", "a Controller");
  auto core =
      make_speculation(borrowed, metric.metric, {perception_radius, cluster_radius, target_step},
                       bodies, sightings_of(entities), minds);
  return std::make_unique<BoundSpeculation>(
      BoundSpeculation{controller, std::move(core), static_cast<AgentId>(bodies.size())});
}

}  // namespace

void bind_speculation(py::module_& m) {
  using Bound = BoundSpeculation;
  py::class_<Bound>(m, "Speculation", py::is_final())
      .def(py::init(&make_bound), py::kw_only(), "controller"_a, "metric"_a, "perception_radius"_a,
           "cluster_radius"_a, "target_step"_a, "bodies"_a, "entities"_a, "minds"_a)
      .def("start", [](Bound& of) { return commands_of(of.core->start()); })
      .def(
          "observed",
          [](Bound& of, ExecutionId id, const std::vector<ReadTuple>& reads) {
            of.core->observed(id, reads_of(reads));
          },
          "id"_a, "reads"_a)
      .def(
          "proceeded", [](Bound& of, ExecutionId id) { of.core->proceeded(id); }, "id"_a)
      .def(
          "resolved",
          [](Bound& of, ExecutionId id, const std::vector<ReadTuple>& reads,
             const std::vector<WriteTuple>& writes, const std::vector<SightingTuple>& events,
             const std::vector<std::pair<AgentId, Digest>>& minds,
             const std::vector<ForecastTuple>& forecasts) {
            of.core->resolved(id, reads_of(reads), writes_of(writes), sightings_of(events),
                              minds_of(minds), forecasts_of(forecasts));
          },
          "id"_a, "reads"_a, "writes"_a, "events"_a, "minds"_a, "forecasts"_a)
      .def(
          "lost", [](Bound& of, ExecutionId id) { of.core->lost(id); }, "id"_a)
      .def(
          "failed", [](Bound& of, ExecutionId id) { of.core->failed(id); }, "id"_a)
      .def("settle", [](Bound& of) { return commands_of(of.core->settle()); })
      .def("candidates", [](const Bound& of) { return of.core->candidates(); })
      .def(
          "next_step",
          [](const Bound& of, AgentId agent) {
            if (agent < 0 || agent >= of.agents) throw py::value_error("there is no such agent");
            return of.core->next_step(agent);
          },
          "agent"_a)
      .def(
          "speculate",
          [](Bound& of, const std::vector<AgentId>& agents) {
            return commands_of(of.core->speculate(agents));
          },
          "agents"_a)
      .def("in_use",
           [](const Bound& of) {
             const NumbersInUse numbers = of.core->in_use();
             return py::make_tuple(numbers.entities, numbers.digests);
           })
      .def_property_readonly("floor", [](const Bound& of) { return of.core->floor(); })
      .def("validate", [](const Bound& of) { of.core->validate(); });
  m.def(
      "bench_speculation",
      [](AgentId agents, Step steps, std::uint64_t seed) {
        ControllerBenchOptions options;
        options.agents = agents;
        options.steps = steps;
        options.seed = seed;
        SpeculationBenchResult result{};
        {
          const py::gil_scoped_release release;
          result = bench_speculation(options);
        }
        return py::dict("agent_steps"_a = result.agent_steps, "cpu_s"_a = result.cpu_s,
                        "executions_per_agent_step"_a = result.executions_per_agent_step,
                        "bytes_per_agent"_a = result.bytes_per_agent,
                        "skew_max"_a = result.skew_max);
      },
      "agents"_a, "steps"_a, "seed"_a);
}
