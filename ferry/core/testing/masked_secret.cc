// Looks for a secret in the memory of this process.
#include "ferry/core/testing/masked_secret.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <vector>

#include "ferry/core/check.h"
#include "ferry/core/fd.h"
#include "ferry/core/mapping.h"
#include "ferry/core/random.h"

namespace ferry {
namespace {

char Unmasked(char byte) { return static_cast<char>(byte ^ 0x5A); }

struct AddressRange {
  std::uintptr_t first = 0;
  std::uintptr_t last = 0;  // exclusive
};

// The writable mappings of at most 16 GiB (proc(5), /proc/PID/maps).
std::vector<AddressRange> WritableRanges() {
  constexpr std::uintptr_t kMaxBytes = std::uintptr_t{16} << 30;
  std::vector<AddressRange> ranges;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    AddressRange range;
    if (std::sscanf(line.c_str(), "%zx-%zx", &range.first, &range.last) == 2 &&
        line.find(" rw") != std::string::npos && range.last - range.first <= kMaxBytes) {
      ranges.push_back(range);
    }
  }
  return ranges;
}

// A file of /proc/self whose offsets are addresses.
class ProcFile {
 public:
  explicit ProcFile(const char* path) : fd_(::open(path, O_RDONLY | O_CLOEXEC)) {
    FERRY_CHECK(fd_, path, errno);
  }
  // Fewer bytes than asked for where a mapping ends, none where it is gone.
  std::size_t ReadAt(std::uintptr_t offset, void* to, std::size_t bytes) const {
    const ssize_t got = ::pread(fd_.get(), to, bytes, static_cast<off_t>(offset));
    return static_cast<std::size_t>(std::max<ssize_t>(got, 0));
  }

 private:
  const UniqueFd fd_;
};

}  // namespace

MaskedSecret::MaskedSecret() { FillRandom(std::as_writable_bytes(std::span(masked_))); }

void MaskedSecret::Reveal(FunctionRef<void(std::string_view)> use) const {
  decltype(masked_) text;
  std::transform(masked_.begin(), masked_.end(), text.begin(), Unmasked);
  use({text.data(), text.size()});
  ::explicit_bzero(text.data(), text.size());
}

void MaskedSecret::WriteTo(const std::string& path) const {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC));
  Reveal([&](std::string_view text) {
    const auto size = static_cast<ssize_t>(text.size());
    FERRY_CHECK(::write(file.get(), text.data(), text.size()) == size, path, errno);
  });
  FERRY_CHECK(::write(file.get(), "\n", 1) == 1, path, errno);
}

std::size_t MaskedSecret::Copies() const {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const ProcFile memory("/proc/self/mem");
  const ProcFile pagemap("/proc/self/pagemap");
  // Pages of its own, which the search leaves out.
  const std::size_t buffer_bytes = 2 * page;
  void* const at =
      ::mmap(nullptr, buffer_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  FERRY_CHECK(at != MAP_FAILED, errno);
  const UniqueMapping buffer(Mapping{at, buffer_bytes});
  const auto buffer_first = reinterpret_cast<std::uintptr_t>(at);

  std::size_t copies = 0;
  for (const AddressRange& range : WritableRanges()) {
    // A word for each page; bits 63 and 62: the page is in memory or in swap.
    std::vector<std::uint64_t> pages((range.last - range.first) / page);
    (void)pagemap.ReadAt(range.first / page * sizeof pages[0], pages.data(),
                         pages.size() * sizeof pages[0]);
    for (std::size_t i = 0; i < pages.size(); ++i) {
      const std::uintptr_t address = range.first + i * page;
      if (pages[i] >> 62 == 0 || address - buffer_first < buffer_bytes) continue;
      // With the beginning of the next page, for a copy that lies across the two.
      const std::size_t got = memory.ReadAt(address, at, page + masked_.size() - 1);
      copies += CopiesIn({static_cast<const char*>(at), got});
    }
  }
  return copies;
}

std::size_t MaskedSecret::CopiesIn(std::span<const char> bytes) const {
  std::size_t copies = 0;
  while (bytes.size() >= masked_.size()) {
    const void* const first =
        std::memchr(bytes.data(), Unmasked(masked_[0]), bytes.size() - masked_.size() + 1);
    if (first == nullptr) break;
    bytes = bytes.subspan(static_cast<std::size_t>(static_cast<const char*>(first) - bytes.data()));
    copies += std::equal(masked_.begin(), masked_.end(), bytes.begin(),
                         [](char masked, char byte) { return Unmasked(masked) == byte; })
                  ? 1
                  : 0;
    bytes = bytes.subspan(1);
  }
  return copies;
}

}  // namespace ferry
