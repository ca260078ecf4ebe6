// Arguments that are objects of the core.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "metropolis/metric.hpp"

namespace metropolis_bindings {

// A wrapper, because pybind11 would convert a variant.
struct BoundMetric {
  metropolis::Metric metric;
};

// The T that `object` is, of the Python class `type`; throws TypeError otherwise.
template <class T>
T& checked_cast(const pybind11::object& object, const char* name, const char* type) {
  if (pybind11::isinstance<T>(object)) return object.cast<T&>();
  throw pybind11::type_error(std::string(name) + " must be " + type + " of metropolis._core");
}

}  // namespace metropolis_bindings
