#include <string>

#include "bindings.hpp"

namespace py = pybind11;

namespace {

// `Class.__new__(Class)` would create an object without its C++ part. Constructors are not
// affected, because they call the type's tp_new slot, which is unchanged.
void refuse_empty_objects(py::module_& m) {
  const py::object refuse = py::cpp_function(
      [](const py::object& type, const py::args&, const py::kwargs&) -> py::object {
        throw py::type_error(std::string(py::str(type)) + " is made by its constructor alone");
      });
  const py::object method = py::module_::import("builtins").attr("staticmethod")(refuse);
  for (const auto& [name, value] : py::dict(m.attr("__dict__"))) {
    if (!PyType_Check(value.ptr())) continue;
    auto* type = reinterpret_cast<PyTypeObject*>(value.ptr());
    if (PyDict_SetItemString(type->tp_dict, "__new__", method.ptr()) != 0) {
      throw py::error_already_set();
    }
    PyType_Modified(type);
  }
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "The C++ core of metropolis: controller, simulated LLM instances, replay.";
  bind_controller(m);
  bind_instance(m);
  bind_left_places(m);
  bind_replay(m);
  bind_speculation(m);
  bind_text(m);
  refuse_empty_objects(m);
}
