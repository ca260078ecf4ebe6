// The only folder that uses pybind11: one bind_*.cpp per part of the core.
#pragma once

#include <pybind11/pybind11.h>

void bind_controller(pybind11::module_& m);
void bind_instance(pybind11::module_& m);
void bind_replay(pybind11::module_& m);
