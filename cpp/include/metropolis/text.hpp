// An estimate of the tokens of a text; metropolis/llm/tokens.py is its interface.
#pragma once

#include <cstdint>
#include <string_view>

namespace metropolis {

// Per word, one token for every CHARACTERS_PER_TOKEN characters begun; one more for white space at
// the end. White space is that of Python's str.split. `utf8` is valid UTF-8.
inline constexpr int CHARACTERS_PER_TOKEN = 4;
std::int64_t approximate_tokens(std::string_view utf8);

}  // namespace metropolis
