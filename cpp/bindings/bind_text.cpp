#include <cstddef>
#include <cstdint>
#include <string_view>

#include "bindings.hpp"
#include "metropolis/text.hpp"

namespace py = pybind11;
using namespace pybind11::literals;

namespace {

std::int64_t tokens_of(const py::str& text) {
  py::ssize_t size = 0;
  const char* utf8 = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (utf8 != nullptr) {
    return metropolis::approximate_tokens({utf8, static_cast<std::size_t>(size)});
  }
  PyErr_Clear();  // a surrogate without the other
  return metropolis::approximate_tokens(
      std::string_view(py::bytes(text.attr("encode")("utf-8", "surrogatepass"))));
}

}  // namespace

void bind_text(py::module_& m) {
  m.def("approximate_tokens", &tokens_of, "text"_a);
}
