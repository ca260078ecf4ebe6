// The queue of waiting requests, and a tournament tree for the minimum over instances.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "metropolis/instance.hpp"

namespace metropolis::detail {

using Slot = std::uint32_t;  // a sequence's place in its instance's slab

// Smaller runs first.
struct Rank {
  std::int64_t priority;
  double arrival_sim_s;
  RequestId id;

  friend bool operator<(const Rank& a, const Rank& b) {
    return std::tie(a.priority, a.arrival_sim_s, a.id) <
           std::tie(b.priority, b.arrival_sim_s, b.id);
  }
};

// A priority queue in which requests that arrive in order cost O(1): they go to a sorted run; only
// those that overtake another go to a heap.
class WaitingQueue {
  struct Entry {
    Rank rank;
    Slot slot;
    friend bool operator<(const Entry& a, const Entry& b) { return b.rank < a.rank; }  // min-heap
  };

  static auto has(RequestId id) {
    return [id](const Entry& entry) { return entry.rank.id == id; };
  }

 public:
  bool empty() const { return sorted_.empty() && heap_.empty(); }
  std::size_t size() const { return sorted_.size() + heap_.size(); }

  void push(const Rank& rank, Slot slot) {
    if (sorted_.empty() || sorted_.back().rank < rank) {
      sorted_.push_back({rank, slot});
    } else {
      heap_.push_back({rank, slot});
      std::push_heap(heap_.begin(), heap_.end());
    }
  }

  Slot front() const { return from_heap() ? heap_.front().slot : sorted_.front().slot; }

  void pop() {
    if (from_heap()) {
      std::pop_heap(heap_.begin(), heap_.end());
      heap_.pop_back();
    } else {
      sorted_.pop_front();
    }
  }

  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (const Entry& entry : sorted_) visit(entry.slot);
    for (const Entry& entry : heap_) visit(entry.slot);
  }

  bool contains(RequestId id) const {
    return std::ranges::any_of(sorted_, has(id)) || std::ranges::any_of(heap_, has(id));
  }

  // Sorts the queue by new ranks, `rank_of(slot)`, in O(n log n).
  template <typename RankOf>
  void rerank(const RankOf& rank_of) {
    sorted_.insert(sorted_.end(), heap_.begin(), heap_.end());
    heap_.clear();
    for (Entry& entry : sorted_) entry.rank = rank_of(entry.slot);
    std::ranges::sort(sorted_, [](const Entry& a, const Entry& b) { return a.rank < b.rank; });
  }

  // Removes a request from any place, in O(n).
  std::optional<Slot> remove(RequestId id) {
    std::optional<Slot> slot;
    if (const auto found = std::find_if(sorted_.begin(), sorted_.end(), has(id));
        found != sorted_.end()) {
      slot = found->slot;
      sorted_.erase(found);
    } else if (const auto in_heap = std::find_if(heap_.begin(), heap_.end(), has(id));
               in_heap != heap_.end()) {
      slot = in_heap->slot;
      heap_.erase(in_heap);
      std::make_heap(heap_.begin(), heap_.end());
    }
    return slot;
  }

 private:
  bool from_heap() const {
    return sorted_.empty() || (!heap_.empty() && heap_.front().rank < sorted_.front().rank);
  }

  std::deque<Entry> sorted_;
  std::vector<Entry> heap_;
};

// The smallest of n values and its index (the lowest on ties); O(log n) to change one.
template <typename T>
class Tournament {
 public:
  Tournament(std::size_t n, T initial) : values_(n, initial), winners_(2 * n) {
    for (std::size_t i = 0; i < n; ++i) winners_[n + i] = i;
    for (std::size_t node = n; node-- > 1;) play(node);
  }

  std::size_t best() const { return winners_[1]; }
  const T& best_value() const { return values_[winners_[1]]; }
  const T& operator[](std::size_t i) const { return values_[i]; }

  void set(std::size_t i, T value) {
    values_[i] = std::move(value);
    for (std::size_t node = (values_.size() + i) / 2; node >= 1; node /= 2) play(node);
  }

 private:
  void play(std::size_t node) {
    const std::size_t a = winners_[2 * node];
    const std::size_t b = winners_[2 * node + 1];
    const bool a_wins = values_[a] < values_[b] || (!(values_[b] < values_[a]) && a < b);
    winners_[node] = a_wins ? a : b;
  }

  std::vector<T> values_;
  std::vector<std::size_t> winners_;  // winners_[1] is the root, winners_[n + i] leaf i
};

}  // namespace metropolis::detail
