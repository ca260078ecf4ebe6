#include "bindings.hpp"

namespace py = pybind11;

namespace {

// `Class.__new__(Class)` would create an object without its C++ part. Python refuses it, and the
// same by way of the base class, if the class has a tp_new of its own; constructors call that.
void refuse_empty_objects(const py::module_& m) {
  for (const auto& [name, value] : py::dict(m.attr("__dict__"))) {
    if (!PyType_Check(value.ptr())) continue;
    reinterpret_cast<PyTypeObject*>(value.ptr())->tp_new =
        [](PyTypeObject* type, PyObject* arguments, PyObject* options) {
          return type->tp_base->tp_new(type, arguments, options);
        };
  }
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "The C++ core of metropolis: controller, simulated LLM instances, replay.";
  bind_controller(m);
  bind_huge_pages(m);
  bind_instance(m);
  bind_left_places(m);
  bind_replay(m);
  bind_snapshot(m);
  bind_speculation(m);
  bind_text(m);
  refuse_empty_objects(m);
}
