// A wrapper, because pybind11 would convert a variant.
#pragma once

#include "metropolis/metric.hpp"

namespace metropolis_bindings {

struct BoundMetric {
  metropolis::Metric metric;
};

}  // namespace metropolis_bindings
