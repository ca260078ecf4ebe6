#include "metropolis/text.hpp"

#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string>

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

// Calls visit(end) for each token, with the offset at which it ends and the next one begins.
template <typename Visit>
void for_each_token(std::string_view utf8, Visit visit) {
  int length = 0;  // of the token so far, in characters
  bool ends_with_space = false;
  for (std::size_t at = 0; at < utf8.size();) {
    const std::size_t begin = at;
    std::uint32_t character = static_cast<unsigned char>(utf8[at++]);
    if (character >= 0xc0) {
      character &= character >= 0xf0 ? 0x07U : character >= 0xe0 ? 0x0fU : 0x1fU;
      while (at < utf8.size() && (static_cast<unsigned char>(utf8[at]) & 0xc0U) == 0x80U) {
        character = character << 6U | (static_cast<unsigned char>(utf8[at++]) & 0x3fU);
      }
    }
    ends_with_space = is_space(character);
    if (ends_with_space) {
      if (length > 0) visit(begin);
      length = 0;
    } else if (++length == CHARACTERS_PER_TOKEN) {
      visit(at);
      length = 0;
    }
  }
  if (length > 0 || ends_with_space) visit(utf8.size());
}

}  // namespace

std::int64_t approximate_tokens(std::string_view utf8) {
  std::int64_t tokens = 0;
  for_each_token(utf8, [&](std::size_t) { ++tokens; });
  return tokens;
}

std::vector<std::int64_t> piece_hashes(std::string_view utf8, std::int64_t piece_tokens,
                                       std::int64_t pieces_max) {
  if (piece_tokens < 1 || pieces_max < 0) {
    throw std::invalid_argument("at most " + std::to_string(pieces_max) + " pieces of " +
                                std::to_string(piece_tokens) +
                                " tokens; the former must be at least 0, the latter at least 1");
  }
  std::vector<std::int64_t> hashes;
  std::size_t begin = 0;
  std::int64_t tokens = 0;
  for_each_token(utf8, [&](std::size_t end) {
    if (++tokens % piece_tokens != 0 || tokens / piece_tokens > pieces_max) return;
    const std::size_t hash = std::hash<std::string_view>{}(utf8.substr(begin, end - begin));
    hashes.push_back(static_cast<std::int64_t>(hash >> 1U));  // ids of texts are not negative
    begin = end;
  });
  return hashes;
}

}  // namespace metropolis
