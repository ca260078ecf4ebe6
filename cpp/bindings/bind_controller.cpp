#include "bindings.hpp"

void bind_controller(pybind11::module_&) {}
