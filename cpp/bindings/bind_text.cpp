#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "bindings.hpp"
#include "metropolis/text.hpp"

namespace py = pybind11;
using namespace pybind11::literals;

namespace {

// use(utf8), also for a surrogate without the other.
template <typename Use>
auto with_utf8(const py::str& text, Use use) {
  py::ssize_t size = 0;
  const char* utf8 = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (utf8 != nullptr) return use(std::string_view(utf8, static_cast<std::size_t>(size)));
  PyErr_Clear();
  const py::bytes encoded(text.attr("encode")("utf-8", "surrogatepass"));
  return use(std::string_view(encoded));
}

std::int64_t tokens_of(const py::str& text) {
  return with_utf8(text, metropolis::approximate_tokens);
}

std::vector<std::int64_t> hashes_of(const py::str& text, std::int64_t piece_tokens,
                                    std::int64_t pieces_max) {
  return with_utf8(text, [&](std::string_view utf8) {
    return metropolis::piece_hashes(utf8, piece_tokens, pieces_max);
  });
}

}  // namespace

void bind_text(py::module_& m) {
  m.def("approximate_tokens", &tokens_of, "text"_a);
  m.def("piece_hashes", &hashes_of, "text"_a, "piece_tokens"_a, "pieces_max"_a);
}
