#include "metropolis/text.hpp"

#include <cstddef>

namespace metropolis {

namespace {

bool is_space(std::uint32_t character) {
  if (character < 0x80) {
    return character == ' ' || (character >= 0x09 && character <= 0x0d) ||
           (character >= 0x1c && character <= 0x1f);
  }
  return character == 0x85 || character == 0xa0 || character == 0x1680 ||
         (character >= 0x2000 && character <= 0x200a) || character == 0x2028 ||
         character == 0x2029 || character == 0x202f || character == 0x205f || character == 0x3000;
}

}  // namespace

std::int64_t approximate_tokens(std::string_view utf8) {
  std::int64_t tokens = 0;
  int length = 0;  // of the word so far, modulo CHARACTERS_PER_TOKEN
  bool ends_with_space = false;
  for (std::size_t at = 0; at < utf8.size();) {
    std::uint32_t character = static_cast<unsigned char>(utf8[at++]);
    if (character >= 0xc0) {
      character &= character >= 0xf0 ? 0x07U : character >= 0xe0 ? 0x0fU : 0x1fU;
      while (at < utf8.size() && (static_cast<unsigned char>(utf8[at]) & 0xc0U) == 0x80U) {
        character = character << 6U | (static_cast<unsigned char>(utf8[at++]) & 0x3fU);
      }
    }
    ends_with_space = is_space(character);
    if (ends_with_space) {
      length = 0;
    } else {
      tokens += length == 0;
      length = (length + 1) % CHARACTERS_PER_TOKEN;
    }
  }
  return tokens + ends_with_space;
}

}  // namespace metropolis
