// The functions that add the parts of the core to the module, one in each bind_*.cpp. Only this
// folder uses pybind11.
#pragma once

#include <pybind11/pybind11.h>

void bind_controller(pybind11::module_& m);
void bind_huge_pages(pybind11::module_& m);
void bind_instance(pybind11::module_& m);
void bind_left_places(pybind11::module_& m);
void bind_replay(pybind11::module_& m);
void bind_snapshot(pybind11::module_& m);
void bind_speculation(pybind11::module_& m);
void bind_text(pybind11::module_& m);
