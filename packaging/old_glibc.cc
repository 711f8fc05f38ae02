// Functions of glibc after 2.34 that a static C++ library needs, for programs that run with
// glibc 2.34: _dl_find_object (2.35), by which exceptions find the unwind tables, and arc4random
// (2.36) of std::random_device. All are hidden, so that no other object of the process gets them.
#include <dlfcn.h>
#include <link.h>
#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

#if defined(__x86_64__) && defined(DLFO_STRUCT_HAS_EH_DBASE)

namespace ferry {
namespace {

struct Search {
  std::uintptr_t address;
  dl_find_object* found;
};

// Called by dl_iterate_phdr for each object; 1 ends the search.
int Examine(dl_phdr_info* object, std::size_t /*size*/, void* data) {
  auto* const search = static_cast<Search*>(data);
  const ElfW(Phdr)* tables = nullptr;
  bool holds_address = false;
  std::uintptr_t begin = UINTPTR_MAX;
  std::uintptr_t end = 0;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (segment.p_type == PT_GNU_EH_FRAME) tables = &segment;
    if (segment.p_type != PT_LOAD) continue;
    const std::uintptr_t first = object->dlpi_addr + segment.p_vaddr;
    const std::uintptr_t last = first + segment.p_memsz;
    begin = first < begin ? first : begin;
    end = last > end ? last : end;
    holds_address = holds_address || (search->address >= first && search->address < last);
  }
  if (!holds_address) return 0;
  if (tables == nullptr) return -1;
  dl_find_object& found = *search->found;
  found = {};
  // NOLINTBEGIN(performance-no-int-to-ptr): the loader's addresses are numbers.
  found.dlfo_map_start = reinterpret_cast<void*>(begin);
  found.dlfo_map_end = reinterpret_cast<void*>(end);
  found.dlfo_eh_frame = reinterpret_cast<void*>(object->dlpi_addr + tables->p_vaddr);
  // NOLINTEND(performance-no-int-to-ptr)
  return 1;
}

}  // namespace
}  // namespace ferry

// It takes the loader's lock, unlike glibc's own: exceptions of several threads wait for each
// other. We throw none where time counts.

// NOLINTNEXTLINE(readability-identifier-naming, bugprone-reserved-identifier): glibc's name.
extern "C" __attribute__((visibility("hidden"))) int _dl_find_object(
    void* address, dl_find_object* found) noexcept {
  ferry::Search search{reinterpret_cast<std::uintptr_t>(address), found};
  return dl_iterate_phdr(ferry::Examine, &search) == 1 ? 0 : -1;
}

#endif

// The kernel's random numbers; ends the process where there are none, as glibc's does.

// NOLINTNEXTLINE(readability-identifier-naming): glibc's name.
extern "C" __attribute__((visibility("hidden"))) std::uint32_t arc4random() noexcept {
  std::uint32_t number = 0;
  if (getrandom(&number, sizeof(number), 0) != static_cast<ssize_t>(sizeof(number))) std::abort();
  return number;
}
