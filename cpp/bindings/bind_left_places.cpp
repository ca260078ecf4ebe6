#include <pybind11/stl.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "bindings.hpp"
#include "metropolis/left_places.hpp"

namespace py = pybind11;
using namespace metropolis;
using namespace metropolis_bindings;
using namespace pybind11::literals;

namespace {

using Point = std::pair<double, double>;

void leave(LeftPlaces& self, LeftPlaces::Entity entity, Point place, Step step,
           LeftPlaces::Change change) {
  self.leave(entity, {place.first, place.second}, step, std::move(change));
}

bool has_left(LeftPlaces& self, Point centre, double radius, Step since) {
  return self.has_left({centre.first, centre.second}, radius, since);
}

auto unknown_to(LeftPlaces& self, AgentId agent, const py::dict& known, Point centre, double radius,
                std::optional<Step> since) {
  const auto known_step = [&](AgentId other) -> std::int64_t {
    // Kept, because what the conversion calls may remove it from the dictionary.
    const auto step = py::reinterpret_borrow<py::object>(
        PyDict_GetItemWithError(known.ptr(), py::int_(other).ptr()));
    if (!step && PyErr_Occurred() != nullptr) throw py::error_already_set();
    if (!step) return -1;
    int overflow = 0;
    const std::int64_t value = PyLong_AsLongLongAndOverflow(step.ptr(), &overflow);
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    return overflow > 0 ? std::numeric_limits<std::int64_t>::max() : value;
  };
  return self.unknown_to(agent, known_step, {centre.first, centre.second}, radius, since);
}

}  // namespace

void bind_left_places(py::module_& m) {
  py::class_<LeftPlaces>(m, "LeftPlaces", py::is_final())
      .def(py::init([](const BoundMetric& metric, double cell_size) {
             return LeftPlaces(metric.metric, cell_size);
           }),
           "metric"_a, "cell_size"_a)
      .def("leave", &leave, "entity"_a, "place"_a, "step"_a, "change"_a)
      .def("has_left", &has_left, "centre"_a, "radius"_a, "since"_a)
      .def("unknown_to", &unknown_to, "agent"_a, "known"_a, "centre"_a, "radius"_a, "since"_a);
}
