// Values that are collected, and then taken in order, each once.
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

  // All values, ascending; it is empty then.
  std::vector<T> take() {
    const Order before;
    std::ranges::sort(values_, before);
    const auto rest = std::ranges::unique(values_, [&](const T& a, const T& b) {
      return !before(a, b);  // in a sorted row: they are equal
    });
    values_.erase(rest.begin(), rest.end());
    return std::exchange(values_, {});
  }

 private:
  std::vector<T> values_;
};

}  // namespace metropolis
