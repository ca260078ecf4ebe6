#include <doctest/doctest.h>

#include <stdexcept>

#include "metropolis/text.hpp"

using namespace metropolis;

TEST_CASE("each word has a token for every four characters begun") {
  CHECK(approximate_tokens("") == 0);
  CHECK(approximate_tokens("word") == 1);
  CHECK(approximate_tokens("words of two") == 4);
  CHECK(approximate_tokens("éééé ééééé") == 3);
}

TEST_CASE("white space at the end is a token, and separates words in every script") {
  CHECK(approximate_tokens(" ") == 1);
  CHECK(approximate_tokens("a\n") == 2);
  CHECK(approximate_tokens("a\u2003b\u3000") == 3);
}

TEST_CASE("pieces begin with the white space before their first word") {
  const auto hashes = piece_hashes("one two three  one two  three", 3, 9);
  CHECK(hashes.size() == 2);  // "three" has two tokens
  CHECK(piece_hashes("one two three", 3, 9) == piece_hashes("one two threefold", 3, 9));
  CHECK(piece_hashes("  one two", 2, 9) != piece_hashes(" one two", 2, 9));
  CHECK(piece_hashes("one two three", 1, 2).size() == 2);
  CHECK(piece_hashes("one two three", 1, 0).empty());
}

TEST_CASE("pieces have at least one token") {
  CHECK_THROWS_AS(piece_hashes("one", 0, 1), std::invalid_argument);
  CHECK_THROWS_AS(piece_hashes("one", 1, -1), std::invalid_argument);
}
