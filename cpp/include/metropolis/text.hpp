// Estimated tokens of a text; metropolis/llm/tokens.py is its interface.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace metropolis {

// Per word, one token for every CHARACTERS_PER_TOKEN characters begun; one more for white space at
// the end. White space is that of Python's str.split. `utf8` is valid UTF-8.
inline constexpr int CHARACTERS_PER_TOKEN = 4;
std::int64_t approximate_tokens(std::string_view utf8);

// The hashes of the first pieces of `piece_tokens` such tokens, at most `pieces_max`; tokens after
// the last whole piece are left out. White space belongs to the token after it. Hashes are not
// negative, and are the same within a process only. Throws std::invalid_argument unless
// `piece_tokens` is at least 1 and `pieces_max` at least 0.
std::vector<std::int64_t> piece_hashes(std::string_view utf8, std::int64_t piece_tokens,
                                       std::int64_t pieces_max);

}  // namespace metropolis
