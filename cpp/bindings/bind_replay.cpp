#include "bindings.hpp"

void bind_replay(pybind11::module_&) {}
