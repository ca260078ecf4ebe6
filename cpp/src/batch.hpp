// Values that are sorted and without duplicates.
#pragma once

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

namespace metropolis {

template <class T, class Order = std::less<T>>
void sort_unique(std::vector<T>& values, const Order& before = {}) {
  std::ranges::sort(values, before);
  const auto rest = std::ranges::unique(values, [&](const T& a, const T& b) {
    return !before(a, b);  // neighbours of a sorted vector are equal then
  });
  values.erase(rest.begin(), rest.end());
}

// A collection of values that are taken together.
template <class T, class Order = std::less<T>>
class Batch {
 public:
  void insert(T value) { values_.push_back(std::move(value)); }
  void clear() { values_.clear(); }

  // Returns all values, ascending and without duplicates, and removes them.
  std::vector<T> take() {
    sort_unique(values_, Order{});
    return std::exchange(values_, {});
  }

 private:
  std::vector<T> values_;
};

}  // namespace metropolis
