#include "bindings.hpp"

PYBIND11_MODULE(_core, m) {
  m.doc() = "The C++ core of metropolis: controller, virtual LLM instances, replay.";
  bind_controller(m);
  bind_instance(m);
  bind_replay(m);
}
