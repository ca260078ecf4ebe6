// Conversion between Python arrays and typed columns.
#pragma once

#include <pybind11/numpy.h>

#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace metropolis_bindings {

namespace py = pybind11;

template <class T>
using Column = py::array_t<T, py::array::c_style | py::array::forcecast>;

// Upper bound of the size of a column: broadcast arrays can be larger than memory.
inline constexpr py::ssize_t VALUES_MAX = py::ssize_t{1} << 32;

// Throws unless a T can hold every number of an integer array.
template <class T>
void check_range(const py::array& array, const char* name) {
  const py::int_ least(std::numeric_limits<T>::min()), most(std::numeric_limits<T>::max());
  const py::object low = array.attr("min")(), high = array.attr("max")();
  if (low >= least && high <= most) return;
  throw py::value_error(std::string(name) + " has values from " + std::string(py::str(low)) +
                        " to " + std::string(py::str(high)) + "; they must lie from " +
                        std::string(py::str(least)) + " to " + std::string(py::str(most)));
}

// A column from `given`, an array or a sequence of numbers. TypeError for other types, and for
// fractions if T is an integer; ValueError for a wrong number of dimensions and for numbers that a
// T cannot hold.
template <class T>
Column<T> column_of(const py::object& given, const char* name, py::ssize_t dimensions = 1) {
  const py::array array = py::array::ensure(given);
  const char kind = array ? array.dtype().kind() : '?';
  const bool whole = kind == 'i' || kind == 'u' || kind == 'b' || (array && array.size() == 0);
  if (!whole && !(std::is_floating_point_v<T> && kind == 'f')) {
    throw py::type_error(std::string(name) + " must be an array of " +
                         (std::is_floating_point_v<T> ? "numbers" : "whole numbers"));
  }
  if (array.size() > VALUES_MAX) {
    throw py::value_error(std::string(name) + " has " + std::to_string(array.size()) +
                          " values; it may have " + std::to_string(VALUES_MAX));
  }
  if (array.ndim() != dimensions) {
    throw py::value_error(std::string(name) + " has " + std::to_string(array.ndim()) +
                          " dimensions; it must have " + std::to_string(dimensions));
  }
  if constexpr (std::is_integral_v<T>) {
    if (array.size() > 0 && !array.dtype().is(py::dtype::of<T>())) check_range<T>(array, name);
  }
  return Column<T>(array);
}

// A copy, for columns that are checked once and index others later. Even a read-only array may be
// changed meanwhile: by its owner, or through the array that it is a view of.
template <class T>
Column<T> fixed_column(const py::object& given, const char* name, py::ssize_t dimensions = 1) {
  const Column<T> column = column_of<T>(given, name, dimensions);
  return Column<T>(std::vector<py::ssize_t>(column.shape(), column.shape() + dimensions),
                   column.data());
}

template <class T>
std::span<const T> view(const Column<T>& column) {
  return {column.data(), static_cast<std::size_t>(column.size())};
}

template <class T>
std::vector<T> vector_of(const Column<T>& column) {
  return {column.data(), column.data() + column.size()};
}

template <class T>
py::array_t<T> to_numpy(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

}  // namespace metropolis_bindings
