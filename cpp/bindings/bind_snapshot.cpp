#include <pybind11/pybind11.h>
// After Python.h, on which it depends.
#include <datetime.h>

#include <cstddef>
#include <unordered_map>
#include <vector>

#include "bindings.hpp"

namespace py = pybind11;
using namespace pybind11::literals;

namespace {

// The fields of a dataclass; none of another class, and of one whose fields may run code when they
// are read.
struct Fields {
  std::vector<py::object> names;
  bool is_dataclass = false;
  bool is_frozen = false;
};

bool is_plain_attribute(PyTypeObject* type, PyObject* name) {
  PyObject* found = _PyType_Lookup(type, name);
  return found == nullptr || Py_IS_TYPE(found, &PyMemberDescr_Type) ||
         Py_TYPE(found)->tp_descr_get == nullptr;
}

// Whether instances have attributes only: a list with fields has items as well.
bool has_attributes_only(PyTypeObject* type) {
  while ((type->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0) type = type->tp_base;
  return type == &PyBaseObject_Type;
}

Fields read_fields(PyTypeObject* type) {
  const py::handle kind(reinterpret_cast<PyObject*>(type));
  Fields fields;
  if (type->tp_getattro != PyObject_GenericGetAttr || !has_attributes_only(type)) return fields;
  if (!py::hasattr(kind, "__dataclass_fields__")) return fields;
  for (const py::handle field : py::module_::import("dataclasses").attr("fields")(kind)) {
    fields.names.push_back(field.attr("name"));
    if (!is_plain_attribute(type, fields.names.back().ptr())) return {};
  }
  fields.is_dataclass = true;
  fields.is_frozen = py::cast<bool>(kind.attr("__dataclass_params__").attr("frozen"));
  return fields;
}

const Fields& fields_of(PyTypeObject* type) {
  // Kept until the process ends, as are its classes: a new class could get the same address.
  static auto* known = new std::unordered_map<PyTypeObject*, Fields>;
  auto found = known->find(type);
  if (found == known->end()) {
    found = known->emplace(type, read_fields(type)).first;
    Py_INCREF(type);
  }
  return found->second;
}

bool is_atom(PyObject* value) {
  return PyUnicode_CheckExact(value) || PyLong_CheckExact(value) || PyFloat_CheckExact(value) ||
         PyBool_Check(value) || value == Py_None || PyBytes_CheckExact(value) ||
         PyDate_CheckExact(value) || PyDateTime_CheckExact(value) || PyTime_CheckExact(value) ||
         PyDelta_CheckExact(value);
}

py::object attribute(PyObject* value, const py::object& name) {
  auto found = py::reinterpret_steal<py::object>(PyObject_GetAttr(value, name.ptr()));
  if (!found) PyErr_Clear();
  return found;
}

// Raises RecursionError in data that contains itself.
class Depth {
 public:
  Depth() {
    if (Py_EnterRecursiveCall(" in a snapshot") != 0) throw py::error_already_set();
  }
  ~Depth() { Py_LeaveRecursiveCall(); }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;
};

bool is_immutable(PyObject* value) {
  if (is_atom(value)) return true;
  const Depth depth;
  if (PyTuple_CheckExact(value)) {
    for (py::ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i) {
      if (!is_immutable(PyTuple_GET_ITEM(value, i))) return false;
    }
    return true;
  }
  const Fields& fields = fields_of(Py_TYPE(value));
  if (!fields.is_frozen) return false;
  for (const py::object& name : fields.names) {
    const py::object item = attribute(value, name);
    if (!item || !is_immutable(item.ptr())) return false;
  }
  return true;
}

// What plain data consisted of: its immutable objects, and the types and sizes of the containers
// around them, in order. Data that matches it has the same objects in the same places.
class Snapshot {
 public:
  explicit Snapshot(const py::handle& value) {
    if (!add(value.ptr())) entries_.clear();
  }

  // Whether all of the data is known; if not, nothing matches.
  bool is_complete() const { return !entries_.empty(); }

  bool matches(const py::handle& value) const {
    std::size_t at = 0;
    return is_complete() && match(value.ptr(), at);
  }

 private:
  static constexpr py::ssize_t immutable = -1;

  struct Entry {
    py::object object;  // an immutable object, or the type of a container
    py::ssize_t size;   // of the container
  };

  void push(PyObject* object, py::ssize_t size) {
    entries_.push_back({py::reinterpret_borrow<py::object>(object), size});
  }

  // The number of items of a container, and -1 of another object.
  static py::ssize_t size_of(PyObject* value) {
    if (PyList_CheckExact(value)) return PyList_GET_SIZE(value);
    if (PyDict_CheckExact(value)) return PyDict_GET_SIZE(value);
    if (PyTuple_CheckExact(value)) return PyTuple_GET_SIZE(value);
    const Fields& fields = fields_of(Py_TYPE(value));
    return fields.is_dataclass ? static_cast<py::ssize_t>(fields.names.size()) : -1;
  }

  // Calls `visit` for the items of a container in order. Returns false as soon as `visit` does, and
  // if a field is missing. The items are kept meanwhile: `visit` may run code of their classes,
  // which may remove them.
  template <typename Visit>
  static bool visit_items(PyObject* value, Visit visit) {
    if (PyList_CheckExact(value)) {
      for (py::ssize_t i = 0; i < PyList_GET_SIZE(value); ++i) {
        const auto kept = py::reinterpret_borrow<py::object>(PyList_GET_ITEM(value, i));
        if (!visit(kept.ptr())) return false;
      }
    } else if (PyDict_CheckExact(value)) {
      PyObject *key = nullptr, *item = nullptr;
      py::ssize_t place = 0;
      while (PyDict_Next(value, &place, &key, &item) != 0) {
        const auto kept_key = py::reinterpret_borrow<py::object>(key);
        const auto kept_item = py::reinterpret_borrow<py::object>(item);
        if (!visit(kept_key.ptr()) || !visit(kept_item.ptr())) return false;
      }
    } else if (PyTuple_CheckExact(value)) {
      for (py::ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i) {
        if (!visit(PyTuple_GET_ITEM(value, i))) return false;
      }
    } else {
      for (const py::object& name : fields_of(Py_TYPE(value)).names) {
        const py::object item = attribute(value, name);
        if (!item || !visit(item.ptr())) return false;
      }
    }
    return true;
  }

  bool add(PyObject* value) {
    if (is_immutable(value)) {
      push(value, immutable);
      return true;
    }
    const py::ssize_t size = size_of(value);
    if (size < 0) return false;
    const Depth depth;
    push(reinterpret_cast<PyObject*>(Py_TYPE(value)), size);
    return visit_items(value, [this](PyObject* item) { return add(item); });
  }

  bool match(PyObject* value, std::size_t& at) const {
    if (at == entries_.size()) return false;  // a container has grown during the visit
    const Entry& entry = entries_[at++];
    if (entry.size == immutable) return entry.object.ptr() == value;
    if (entry.object.ptr() != reinterpret_cast<PyObject*>(Py_TYPE(value))) return false;
    if (size_of(value) != entry.size) return false;
    return visit_items(value, [&](PyObject* item) { return match(item, at); });
  }

  std::vector<Entry> entries_;
};

bool have_same_items(const py::list& before, const py::list& now) {
  const py::ssize_t size = PyList_GET_SIZE(now.ptr());
  if (PyList_GET_SIZE(before.ptr()) != size) return false;
  for (py::ssize_t i = 0; i < size; ++i) {
    if (PyList_GET_ITEM(before.ptr(), i) != PyList_GET_ITEM(now.ptr(), i)) return false;
  }
  return true;
}

}  // namespace

void bind_snapshot(py::module_& m) {
  PyDateTime_IMPORT;
  py::class_<Snapshot>(m, "Snapshot", py::is_final())
      .def(py::init<py::handle>(), "value"_a)
      .def_property_readonly("is_complete", &Snapshot::is_complete)
      .def("matches", &Snapshot::matches, "value"_a);
  m.def("have_same_items", &have_same_items, "before"_a, "now"_a);
  m.def(
      "is_immutable", [](const py::handle& value) { return is_immutable(value.ptr()); }, "value"_a);
}
