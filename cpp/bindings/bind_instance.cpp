#include "bindings.hpp"

void bind_instance(pybind11::module_&) {}
