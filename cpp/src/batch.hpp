// A collection of values that are taken together, sorted and without duplicates.
#pragma once

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

namespace metropolis {

template <class T, class Order = std::less<T>>
class Batch {
 public:
  void insert(T value) { values_.push_back(std::move(value)); }
  void clear() { values_.clear(); }

  // Returns all values, ascending and without duplicates, and removes them.
  std::vector<T> take() {
    const Order before;
    std::ranges::sort(values_, before);
    const auto rest = std::ranges::unique(values_, [&](const T& a, const T& b) {
      return !before(a, b);  // neighbours of a sorted vector are equal then
    });
    values_.erase(rest.begin(), rest.end());
    return std::exchange(values_, {});
  }

 private:
  std::vector<T> values_;
};

}  // namespace metropolis
