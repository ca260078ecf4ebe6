// Huge pages for Python's objects. The objects of many agents are spread over so much memory that,
// with pages of 4 kB, the processor spends a tenth of a run on the translation of addresses.
#include <cstddef>

#include "bindings.hpp"

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>
#endif

namespace py = pybind11;

namespace {

#ifdef __linux__

constexpr std::size_t ARENA = std::size_t{1} << 20;  // what Python allocates at once
constexpr std::size_t PAGE = 2 * ARENA, BLOCK = 16 * PAGE;
constexpr int COLLAPSE = 25;  // MADV_COLLAPSE of Linux 6.1; earlier ones refuse it

std::uintptr_t page_of(std::uintptr_t address) {
  return address & ~(PAGE - 1);
}

// Gives Python its arenas from blocks of huge pages, and advises huge pages for malloc's heap as it
// grows: Python takes larger objects from there.
class HugePages {
 public:
  explicit HugePages(std::uintptr_t heap_begin) : heap_begin_(page_of(heap_begin + PAGE - 1)) {
    PyObject_GetArenaAllocator(&former_);
    PyObjectArenaAllocator huge{
        this,
        [](void* self, std::size_t size) { return static_cast<HugePages*>(self)->allocate(size); },
        [](void* self, void* arena, std::size_t size) {
          static_cast<HugePages*>(self)->release(arena, size);
        }};
    PyObject_SetArenaAllocator(&huge);
    advise_heap();
  }

 private:
  void* allocate(std::size_t size) {
    const std::lock_guard lock(mutex_);
    if (size != ARENA) return former_.alloc(former_.ctx, size);
    advise_heap();
    if (free_.empty() && !reserve()) return former_.alloc(former_.ctx, size);
    const std::uintptr_t arena = free_.back();
    free_.pop_back();
    ++used_.at(page_of(arena));
    return reinterpret_cast<void*>(arena);
  }

  void release(void* address, std::size_t size) {
    const std::lock_guard lock(mutex_);
    const auto arena = reinterpret_cast<std::uintptr_t>(address);
    const auto used = used_.find(page_of(arena));
    if (used == used_.end()) return former_.free(former_.ctx, address, size);
    free_.push_back(arena);
    if (--used->second == 0) madvise(reinterpret_cast<void*>(used->first), PAGE, MADV_DONTNEED);
  }

  // Adds the arenas of a new block to the free ones.
  bool reserve() {
    void* const mapped = mmap(nullptr, BLOCK + PAGE, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return false;
    const std::uintptr_t begin = page_of(reinterpret_cast<std::uintptr_t>(mapped) + PAGE - 1);
    madvise(reinterpret_cast<void*>(begin), BLOCK, MADV_HUGEPAGE);
    for (std::size_t offset = BLOCK; offset > 0; offset -= ARENA) {
      free_.push_back(begin + offset - ARENA);
      used_[page_of(free_.back())] = 0;
    }
    return true;
  }

  void advise_heap() {
    const std::uintptr_t end = page_of(reinterpret_cast<std::uintptr_t>(sbrk(0)));
    const std::uintptr_t begin = std::max(heap_begin_, heap_end_);
    if (end > begin) {
      madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
      madvise(reinterpret_cast<void*>(begin), end - begin, COLLAPSE);
    }
    heap_end_ = end;
  }

  PyObjectArenaAllocator former_{};
  std::mutex mutex_;
  std::vector<std::uintptr_t> free_;              // arenas
  std::unordered_map<std::uintptr_t, int> used_;  // page -> its arenas in use
  std::uintptr_t heap_begin_, heap_end_ = 0;
};

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The address at which malloc's heap begins; 0: unknown.
std::uintptr_t heap_begin() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.ends_with("[heap]")) return std::stoull(line, nullptr, 16);
  }
  return 0;
}

bool use_huge_pages() {
  static const bool used = [] {
    const std::string folder = "/sys/kernel/mm/transparent_hugepage/";
    const std::uintptr_t begin = heap_begin();
    if (begin == 0 || contents(folder + "enabled").find("[never]") != std::string::npos ||
        contents(folder + "hpage_pmd_size") != std::to_string(PAGE) + "\n") {
      return false;
    }
    new HugePages(begin);  // Python's until the process ends
    return true;
  }();
  return used;
}

#else

bool use_huge_pages() {
  return false;
}

#endif

}  // namespace

void bind_huge_pages(py::module_& m) {
  m.def("use_huge_pages", &use_huge_pages);
}
