#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "bindings.hpp"
#include "columns.hpp"
#include "metropolis/controller_bench.hpp"
#include "metropolis/controllers.hpp"

namespace py = pybind11;
using namespace metropolis;
using namespace metropolis_bindings;
using namespace pybind11::literals;

namespace {

using Positions = Column<double>;

Positions positions_of(const py::object& given, const char* name) {
  Positions array = column_of<double>(given, name, 2);
  if (array.shape(1) == 2) return array;
  throw py::value_error(std::string(name) + " must be an array of the shape (n, 2)");
}

// (n, 2) as n positions, without a copy.
std::span<const Position> as_positions(const Positions& positions) {
  static_assert(sizeof(Position) == 2 * sizeof(double));
  return {reinterpret_cast<const Position*>(positions.data()),
          static_cast<std::size_t>(positions.shape(0))};
}

BoundMetric plane_metric(const std::string& name) {
  if (name == "chebyshev") return {Chebyshev{}};
  if (name == "euclidean") return {Euclidean{}};
  if (name == "manhattan") return {Manhattan{}};
  throw std::invalid_argument("there is no plane metric " + name);
}

// Checks (height, width) before the copy: a broadcast array can be larger than memory.
template <class T>
Column<T> map_of(const py::object& given, const char* name) {
  const py::array array = py::array::ensure(given);
  if (array && array.size() > Tiles::TILES_MAX) {
    throw py::value_error(std::string(name) + " has " + std::to_string(array.size()) +
                          " tiles; a map may have " + std::to_string(Tiles::TILES_MAX));
  }
  return column_of<T>(given, name, 2);
}

int side(py::ssize_t length) {
  return static_cast<int>(std::min<py::ssize_t>(length, std::numeric_limits<int>::max()));
}

BoundMetric geodesic_metric(const py::object& given_walls, int horizon) {
  const auto walls = map_of<std::uint8_t>(given_walls, "walls");
  return {Geodesic(view(walls), side(walls.shape(1)), side(walls.shape(0)), horizon)};
}

BoundMetric genagent_metric(const py::object& given_walls, const py::object& given_arenas,
                            double max_velocity, int horizon) {
  const auto walls = map_of<std::uint8_t>(given_walls, "walls");
  const auto arenas = map_of<std::int32_t>(given_arenas, "arenas");
  if (arenas.shape(0) != walls.shape(0) || arenas.shape(1) != walls.shape(1)) {
    throw py::value_error("walls and arenas must have the same shape, (height, width)");
  }
  return {GenAgent(view(walls), view(arenas), side(walls.shape(1)), side(walls.shape(0)),
                   max_velocity, horizon)};
}

// (n,): whether an agent at p[i] perceives q[i]; p and q are (n, 2).
py::array_t<bool> perceives_each(const BoundMetric& metric, const py::object& p,
                                 const py::object& q, double radius) {
  const Positions from = positions_of(p, "p"), to = positions_of(q, "q");
  py::array_t<bool> result(from.shape(0));
  metropolis::perceives(metric.metric, as_positions(from), as_positions(to), radius,
                        {result.mutable_data(), static_cast<std::size_t>(from.shape(0))});
  return result;
}

BoundMetric hops_metric(const py::object& offsets, const py::object& neighbours) {
  return {Hops(vector_of(column_of<std::int64_t>(offsets, "offsets")),
               vector_of(column_of<std::int32_t>(neighbours, "neighbours")))};
}

bool within_of(const BoundMetric& metric, std::pair<double, double> p, std::pair<double, double> q,
               double radius, double reach) {
  return metropolis::within(metric.metric, {p.first, p.second}, {q.first, q.second}, radius, reach);
}

std::optional<std::string> flaw_of(const BoundMetric& metric, std::pair<double, double> p) {
  return metropolis::flaw(metric.metric, {p.first, p.second});
}

py::list clusters_of(const Dispatches& dispatches) {
  py::list clusters(dispatches.clusters.size());
  for (std::size_t i = 0; i < dispatches.clusters.size(); ++i) {
    const auto& cluster = dispatches.clusters[i];
    const auto members = dispatches.members(cluster);
    py::tuple agents(members.size());
    for (std::size_t j = 0; j < members.size(); ++j) agents[j] = py::int_(members[j]);
    clusters[i] = py::make_tuple(cluster.step, std::move(agents));
  }
  return clusters;
}

py::list start(Controller& controller) {
  Dispatches out;
  controller.start(out);
  return clusters_of(out);
}

py::list commit(Controller& controller, const std::vector<AgentId>& agents,
                const std::vector<std::pair<double, double>>& positions) {
  std::vector<Position> moved;
  moved.reserve(positions.size());
  for (const auto& [x, y] : positions) moved.push_back({x, y});
  Dispatches out;
  controller.commit(agents, moved, out);
  return clusters_of(out);
}

py::dict bench(double couple_radius, double block_radius, const BoundMetric& metric, AgentId agents,
               Step steps, std::uint64_t seed) {
  ControllerBenchOptions options;
  options.agents = agents;
  options.steps = steps;
  options.seed = seed;
  ControllerBenchResult result{};
  {
    const py::gil_scoped_release release;
    result = bench_controller({couple_radius, block_radius}, metric.metric, options);
  }
  return py::dict("agent_steps"_a = result.agent_steps, "cpu_s"_a = result.cpu_s,
                  "construct_cpu_s"_a = result.construct_cpu_s, "commits"_a = result.commits,
                  "commit_p50_us"_a = result.commit_p50_us,
                  "commit_p99_us"_a = result.commit_p99_us,
                  "commit_max_us"_a = result.commit_max_us, "bytes_fixed"_a = result.bytes_fixed,
                  "bytes_per_agent"_a = result.bytes_per_agent, "skew_max"_a = result.skew_max);
}

}  // namespace

void bind_controller(py::module_& m) {
  py::class_<BoundMetric>(m, "Metric", py::is_final())
      .def("within", within_of, "p"_a, "q"_a, "radius"_a, "reach"_a)
      .def("flaw", flaw_of, "p"_a);
  m.def("plane_metric", plane_metric, "name"_a);
  m.def("geodesic_metric", geodesic_metric, "walls"_a, "horizon"_a);
  m.def("genagent_metric", genagent_metric, "walls"_a, "arenas"_a, "max_velocity"_a, "horizon"_a);
  m.def("perceives", perceives_each, "metric"_a, "p"_a, "q"_a, "radius"_a);
  m.def("hops_metric", hops_metric, "offsets"_a, "neighbours"_a);

  py::class_<Controller>(m, "Controller", py::is_final())
      .def("start", start)
      .def("commit", commit, "agents"_a, "positions"_a)
      .def("blocked_by",
           [](const Controller& controller) { return to_numpy(controller.blocked_by()); })
      .def("clear_until", &Controller::clear_until, "agent"_a)
      .def_property_readonly("floor", &Controller::floor)
      .def("validate", &Controller::validate);
  m.def(
      "make_controller",
      [](double couple_radius, double block_radius, const BoundMetric& metric, double max_velocity,
         const py::object& given_positions, Step target_step, bool check_moves,
         const std::vector<Step>& steps) {
        const Positions positions = positions_of(given_positions, "positions");
        return make_controller({couple_radius, block_radius}, metric.metric, max_velocity,
                               as_positions(positions), steps, target_step, check_moves);
      },
      "couple_radius"_a, "block_radius"_a, "metric"_a, "max_velocity"_a, "positions"_a,
      "target_step"_a, "check_moves"_a = true, "steps"_a = std::vector<Step>{});
  m.def(
      "make_graph_controller",
      [](AgentId agents, Step steps, const py::object& offsets, const py::object& partners) {
        return make_graph_controller(agents, steps,
                                     vector_of(column_of<std::int64_t>(offsets, "offsets")),
                                     vector_of(column_of<AgentId>(partners, "partners")));
      },
      "agents"_a, "steps"_a, "offsets"_a, "partners"_a);
  m.def(
      "make_value_controller",
      [](AgentId agents, Step steps, const py::object& offsets, const py::object& writers,
         const py::object& ago) {
        return make_value_controller(agents, steps,
                                     vector_of(column_of<std::int64_t>(offsets, "offsets")),
                                     vector_of(column_of<AgentId>(writers, "writers")),
                                     vector_of(column_of<Step>(ago, "ago")));
      },
      "agents"_a, "steps"_a, "offsets"_a, "writers"_a, "ago"_a);
  m.def("bench_controller", bench, "couple_radius"_a, "block_radius"_a, "metric"_a, "agents"_a,
        "steps"_a, "seed"_a);
}
