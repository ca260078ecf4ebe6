// The prefix cache of one instance: a radix tree of KV blocks. Block accounting stays with the
// caller.
//
// As in vLLM, a block is found by a hash of all tokens up to its end, so the tree needs only edges
// to parents. A sequence that holds a block holds its ancestors and releases the last block first,
// so the least recently used idle block is a leaf.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "metropolis/instance.hpp"

namespace metropolis::detail {

// The known tokens of a request (Request::prefix) and their number.
struct KnownPrefix {
  explicit KnownPrefix(const std::vector<Segment>& prefix) : segments(prefix) {
    for (const Segment& segment : segments) tokens += segment.tokens;
  }

  std::vector<Segment> segments;
  std::int64_t tokens = 0;
};

// The hashes of the first `count` blocks of known tokens.
class PrefixBlocks {
 public:
  PrefixBlocks() = default;
  PrefixBlocks(const KnownPrefix& known, std::int64_t count, std::int32_t block_tokens)
      : segment_(known.segments.begin()), count_(count), block_tokens_(block_tokens) {}

  // Number of blocks that next() has not returned.
  std::int64_t left() const { return count_; }

  // The hash of all tokens up to the end of the next block.
  std::uint64_t next() {
    --count_;
    for (std::int64_t missing = block_tokens_; missing > 0;) {
      const std::int64_t piece = std::min<std::int64_t>(missing, segment_->tokens - offset_);
      hash_ = mixed(mixed(hash_ ^ static_cast<std::uint64_t>(segment_->id)) ^
                    static_cast<std::uint64_t>(offset_ << 32 | piece));
      missing -= piece;
      offset_ += piece;
      if (offset_ == segment_->tokens) {
        ++segment_;
        offset_ = 0;
      }
    }
    return hash_;
  }

 private:
  static std::uint64_t mixed(std::uint64_t x) {  // the finalizer of splitmix64
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }

  std::vector<Segment>::const_iterator segment_;
  std::int64_t count_ = 0;
  std::int64_t block_tokens_ = 0;
  std::int64_t offset_ = 0;
  std::uint64_t hash_ = 0;
};

class PrefixCache {
 public:
  using Block = std::uint32_t;
  static constexpr Block NONE = 0;  // before the first block; also the head of the idle list

  Block find(std::uint64_t hash) const {
    const auto found = by_hash_.find(hash);
    return found == by_hash_.end() ? NONE : found->second;
  }

  // Adds a block, held by one sequence.
  Block insert(std::uint64_t hash, Block parent) {
    Block block = static_cast<Block>(nodes_.size());
    if (unused_.empty()) {
      nodes_.emplace_back();
    } else {
      block = unused_.back();
      unused_.pop_back();
    }
    nodes_[block] = {.hash = hash, .parent = parent, .references = 1, .older = NONE, .newer = NONE};
    by_hash_.emplace(hash, block);
    return block;
  }

  bool idle(Block block) const { return nodes_[block].references == 0; }

  void acquire(Block block) {
    if (nodes_[block].references++ == 0) unlink(block);
  }

  // Releases a block and all its ancestors.
  void release(Block block) {
    for (; block != NONE; block = nodes_[block].parent) {
      if (--nodes_[block].references == 0) link_as_newest(block);
    }
  }

  std::int64_t idle_blocks() const { return idle_blocks_; }

  // How many of the blocks, each the parent of the next, are left after `evictions` more. The last
  // ones go first.
  std::size_t left_after(std::int64_t evictions, const std::vector<Block>& chain) const {
    std::size_t left = chain.size();
    Block oldest = nodes_[NONE].newer;
    for (; evictions > 0 && left > 0; --evictions) {
      if (oldest == chain[left - 1]) --left;
      oldest = nodes_[oldest].newer;
    }
    return left;
  }

  // Drops the block that has been idle for the longest time.
  void evict() {
    const Block oldest = nodes_[NONE].newer;
    unlink(oldest);
    by_hash_.erase(nodes_[oldest].hash);
    unused_.push_back(oldest);
  }

 private:
  struct Node {
    std::uint64_t hash;
    Block parent;
    std::uint32_t references;
    Block older, newer;  // neighbours in the idle list, a ring through nodes_[NONE]
  };

  void link_as_newest(Block block) {
    const Block before = nodes_[NONE].older;
    nodes_[block].older = before;
    nodes_[block].newer = NONE;
    nodes_[before].newer = nodes_[NONE].older = block;
    ++idle_blocks_;
  }

  void unlink(Block block) {
    const Node& node = nodes_[block];
    nodes_[node.older].newer = node.newer;
    nodes_[node.newer].older = node.older;
    --idle_blocks_;
  }

  std::vector<Node> nodes_{1};
  std::vector<Block> unused_;
  std::unordered_map<std::uint64_t, Block> by_hash_;
  std::int64_t idle_blocks_ = 0;
};

}  // namespace metropolis::detail
