// Prefixes kept in one instance's KV cache. Block accounting stays with the caller.
#pragma once

#include <cstdint>
#include <list>
#include <unordered_map>

namespace metropolis::detail {

class PrefixCache {
 public:
  struct Entry {
    std::int64_t id;
    std::int64_t blocks;
    std::int64_t references;
  };
  using Handle = std::list<Entry>::iterator;

  Handle none() { return held_.end(); }

  Handle find(std::int64_t id) {
    const auto found = by_id_.find(id);
    return found == by_id_.end() ? none() : found->second;
  }

  // A new entry with one reference.
  Handle insert(std::int64_t id, std::int64_t blocks) {
    const Handle entry = held_.insert(held_.end(), {id, blocks, 1});
    by_id_.emplace(id, entry);
    return entry;
  }

  void acquire(Handle entry) {
    if (entry->references++ == 0) {
      evictable_blocks_ -= entry->blocks;
      held_.splice(held_.end(), idle_, entry);
    }
  }

  void release(Handle entry) {
    if (--entry->references == 0) {
      evictable_blocks_ += entry->blocks;
      idle_.splice(idle_.end(), held_, entry);
    }
  }

  std::int64_t evictable_blocks() const { return evictable_blocks_; }

  // Drops the unreferenced prefix that has been so the longest; returns its blocks.
  std::int64_t evict() {
    const Entry entry = idle_.front();
    by_id_.erase(entry.id);
    idle_.pop_front();
    evictable_blocks_ -= entry.blocks;
    return entry.blocks;
  }

 private:
  std::list<Entry> held_, idle_;  // idle_: unreferenced, least recently used first
  std::unordered_map<std::int64_t, Handle> by_id_;
  std::int64_t evictable_blocks_ = 0;
};

}  // namespace metropolis::detail
