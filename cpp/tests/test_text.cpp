#include <doctest/doctest.h>

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
