#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "metropolis/controller_bench.hpp"
#include "metropolis/controllers.hpp"

namespace py = pybind11;
using namespace metropolis;

namespace {

// A variant would be converted by pybind11, which must hand it on as it is.
struct BoundMetric {
  Metric metric;
};

template <class T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

std::vector<Position> positions_of(const Array<double>& array) {
  if (array.ndim() != 2 || array.shape(1) != 2) {
    throw std::invalid_argument("positions must be an array of the shape (agents, 2)");
  }
  std::vector<Position> positions(static_cast<std::size_t>(array.shape(0)));
  const auto rows = array.unchecked<2>();
  for (py::ssize_t i = 0; i < array.shape(0); ++i) {
    positions[static_cast<std::size_t>(i)] = {rows(i, 0), rows(i, 1)};
  }
  return positions;
}

template <class T>
std::vector<T> vector_of(const Array<T>& array) {
  return {array.data(), array.data() + array.size()};
}

BoundMetric plane_metric(const std::string& name) {
  if (name == "chebyshev") return {Chebyshev{}};
  if (name == "euclidean") return {Euclidean{}};
  if (name == "manhattan") return {Manhattan{}};
  throw std::invalid_argument("there is no plane metric " + name);
}

BoundMetric geodesic_metric(const Array<std::uint8_t>& walls, int horizon) {
  if (walls.ndim() != 2) throw std::invalid_argument("walls must have the shape (height, width)");
  return {Geodesic({walls.data(), static_cast<std::size_t>(walls.size())},
                   static_cast<int>(walls.shape(1)), static_cast<int>(walls.shape(0)), horizon)};
}

BoundMetric genagent_metric(const Array<std::uint8_t>& walls, const Array<std::int32_t>& arenas,
                            double max_velocity, int horizon) {
  if (walls.ndim() != 2 || arenas.size() != walls.size()) {
    throw std::invalid_argument("walls and arenas must have the shape (height, width)");
  }
  return {GenAgent({walls.data(), static_cast<std::size_t>(walls.size())},
                   {arenas.data(), static_cast<std::size_t>(arenas.size())},
                   static_cast<int>(walls.shape(1)), static_cast<int>(walls.shape(0)), max_velocity,
                   horizon)};
}

// (n,): whether someone at p[i] perceives what is at q[i]; p and q are (n, 2).
Array<bool> perceives(const BoundMetric& metric, const Array<double>& p, const Array<double>& q,
                      double radius) {
  if (p.size() != q.size()) throw std::invalid_argument("p and q must be equally long");
  Array<bool> result(p.size() / 2);
  const double* left = p.data();
  const double* right = q.data();
  std::visit(
      [&](const auto& chosen) {
        for (py::ssize_t i = 0; i < result.size(); ++i) {
          result.mutable_data()[i] = chosen.perceives({left[2 * i], left[2 * i + 1]},
                                                      {right[2 * i], right[2 * i + 1]}, radius);
        }
      },
      metric.metric);
  return result;
}

BoundMetric hops_metric(const Array<std::int64_t>& offsets, const Array<std::int32_t>& neighbours) {
  return {Hops(vector_of(offsets), vector_of(neighbours))};
}

bool within(const BoundMetric& metric, std::pair<double, double> p, std::pair<double, double> q,
            double radius, double reach) {
  return std::visit(
      [&](const auto& chosen) {
        return chosen.within({p.first, p.second}, {q.first, q.second}, radius, reach);
      },
      metric.metric);
}

std::optional<std::string> flaw(const BoundMetric& metric, std::pair<double, double> p) {
  return std::visit(
      [&](const auto& chosen) -> std::optional<std::string> {
        const Position position{p.first, p.second};
        if (chosen.stands(position)) return std::nullopt;
        return chosen.flaw(position);
      },
      metric.metric);
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
  using namespace py::literals;
  return py::dict("agent_steps"_a = result.agent_steps, "cpu_s"_a = result.cpu_s,
                  "construct_cpu_s"_a = result.construct_cpu_s, "commits"_a = result.commits,
                  "commit_p50_us"_a = result.commit_p50_us,
                  "commit_p99_us"_a = result.commit_p99_us,
                  "commit_max_us"_a = result.commit_max_us, "bytes_fixed"_a = result.bytes_fixed,
                  "bytes_per_agent"_a = result.bytes_per_agent, "skew_max"_a = result.skew_max);
}

}  // namespace

void bind_controller(py::module_& m) {
  using namespace py::literals;
  py::class_<BoundMetric>(m, "Metric")
      .def("within", within, "p"_a, "q"_a, "radius"_a, "reach"_a)
      .def("flaw", flaw, "p"_a);
  m.def("plane_metric", plane_metric, "name"_a);
  m.def("geodesic_metric", geodesic_metric, "walls"_a, "horizon"_a);
  m.def("genagent_metric", genagent_metric, "walls"_a, "arenas"_a, "max_velocity"_a, "horizon"_a);
  m.def("perceives", perceives, "metric"_a, "p"_a, "q"_a, "radius"_a);
  m.def("hops_metric", hops_metric, "offsets"_a, "neighbours"_a);

  py::class_<Controller>(m, "Controller")
      .def("start", start)
      .def("commit", commit, "agents"_a, "positions"_a)
      .def("blocked_by",
           [](const Controller& controller) {
             const std::vector<AgentId> edges = controller.blocked_by();
             return Array<AgentId>(static_cast<py::ssize_t>(edges.size()), edges.data());
           })
      .def("clear_until", &Controller::clear_until, "agent"_a)
      .def_property_readonly("floor", &Controller::floor)
      .def("validate", &Controller::validate);
  m.def(
      "make_controller",
      [](double couple_radius, double block_radius, const BoundMetric& metric, double max_velocity,
         const Array<double>& positions, Step target_step, bool check_moves,
         const std::vector<Step>& steps) {
        return make_controller({couple_radius, block_radius}, metric.metric, max_velocity,
                               positions_of(positions), steps, target_step, check_moves);
      },
      "couple_radius"_a, "block_radius"_a, "metric"_a, "max_velocity"_a, "positions"_a,
      "target_step"_a, "check_moves"_a = true, "steps"_a = std::vector<Step>{});
  m.def(
      "make_graph_controller",
      [](AgentId agents, Step steps, const Array<std::int64_t>& offsets,
         const Array<AgentId>& partners) {
        return make_graph_controller(agents, steps, vector_of(offsets), vector_of(partners));
      },
      "agents"_a, "steps"_a, "offsets"_a, "partners"_a);
  m.def("bench_controller", bench, "couple_radius"_a, "block_radius"_a, "metric"_a, "agents"_a,
        "steps"_a, "seed"_a);
}
