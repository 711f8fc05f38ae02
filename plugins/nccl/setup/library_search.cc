// As glibc's dlopen(3) and ld.so(8) search.
#include "plugins/nccl/setup/library_search.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/stat.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string_view>
#include <vector>

namespace ferry::nccl_net {
namespace {

constexpr const char* kLoaderCache = "/etc/ld.so.cache";
constexpr std::string_view kCacheMagic = "glibc-ld.so.cache1.1";

struct LibraryCloser {
  void operator()(void* handle) const noexcept { (void)::dlclose(handle); }
};
// A reference to an object that is already loaded.
using LoadedLibrary = std::unique_ptr<void, LibraryCloser>;

LoadedLibrary OpenLoaded(const char* name) {
  return LoadedLibrary(::dlopen(name, RTLD_LAZY | RTLD_NOLOAD));
}

link_map* MapOf(const void* address) {
  Dl_info info{};
  void* map = nullptr;
  const bool known = ::dladdr1(address, &info, &map, RTLD_DL_LINKMAP) != 0;
  return known ? static_cast<link_map*>(map) : nullptr;
}

// The address of a function as a data pointer, which dladdr(3) takes.
const void* OwnCode() { return reinterpret_cast<const void*>(&IsThisLibrary); }

// The path of the main program is /proc/self/exe.
std::string PathOf(const link_map* map) {
  const bool named = map != nullptr && map->l_name != nullptr && *map->l_name != '\0';
  return named ? map->l_name : "/proc/self/exe";
}

struct Folder {
  std::string path;
  bool is_default = false;  // searched after the loader's cache
};

// The folders as the loader itself has them: it read the variables when the process began.
std::vector<Folder> FoldersOf(const void* caller) {
  const link_map* const map = MapOf(caller);
  LoadedLibrary object = OpenLoaded(map != nullptr && *map->l_name != '\0' ? map->l_name : nullptr);
  if (object == nullptr) object = OpenLoaded(nullptr);
  Dl_serinfo size{};
  if (object == nullptr || ::dlinfo(object.get(), RTLD_DI_SERINFOSIZE, &size) != 0) return {};
  std::vector<std::max_align_t> room(size.dls_size / sizeof(std::max_align_t) + 1);
  auto* const info = static_cast<Dl_serinfo*>(static_cast<void*>(room.data()));
  info->dls_size = size.dls_size;
  info->dls_cnt = size.dls_cnt;
  if (::dlinfo(object.get(), RTLD_DI_SERINFO, info) != 0) return {};
  std::vector<Folder> folders;
  for (unsigned i = 0; i < info->dls_cnt; ++i) {
    const Dl_serpath& one = info->dls_serpath[i];
    folders.push_back({one.dls_name, (one.dls_flags & LA_SER_DEFAULT) != 0});
  }
  return folders;
}

using ElfHead = std::array<char, sizeof(Elf64_Ehdr::e_ident) + 2 * sizeof(Elf64_Half)>;

std::optional<ElfHead> HeadOf(const std::string& path) {
  ElfHead head{};
  std::ifstream in(path, std::ios::binary);
  if (!in.read(head.data(), head.size())) return std::nullopt;
  return head;
}

// Whether the file is a shared library for this machine's architecture. The loader skips others.
bool IsLibrary(const std::string& path) {
  const auto head = HeadOf(path);
  const auto own = HeadOf(PathOf(MapOf(OwnCode())));
  if (!head || !own) return false;
  constexpr std::size_t kMachine = offsetof(Elf64_Ehdr, e_machine);
  return std::memcmp(head->data(), own->data(), EI_DATA + 1) == 0 &&
         std::memcmp(head->data() + kMachine, own->data() + kMachine, sizeof(Elf64_Half)) == 0;
}

std::optional<std::string> FindIn(const std::vector<Folder>& folders, bool defaults,
                                  const std::string& name) {
  for (const Folder& folder : folders) {
    const std::string path = folder.path + "/" + name;
    if (folder.is_default == defaults && IsLibrary(path)) return path;
  }
  return std::nullopt;
}

// The cache header, as sysdeps/generic/dl-cache.h of glibc defines it.
struct CacheHead {
  char magic[20];
  std::uint32_t entries;
  std::uint32_t string_bytes;
  std::uint32_t unused[5];
};
struct CacheEntry {
  std::int32_t flags;
  std::uint32_t name;  // offset of a string, like the next
  std::uint32_t path;
  std::uint32_t os_version;
  std::uint64_t capabilities;
};
static_assert(sizeof(CacheHead) == 48 && sizeof(CacheEntry) == 24);

// The string at that offset; empty where it is not terminated.
std::string_view TextAt(std::string_view bytes, std::uint32_t offset) {
  if (offset >= bytes.size()) return {};
  const std::string_view rest = bytes.substr(offset);
  const std::size_t end = rest.find('\0');
  return end == std::string_view::npos ? std::string_view() : rest.substr(0, end);
}

}  // namespace

std::optional<std::string> FindInLoaderCache(const std::string& cache, const std::string& name) {
  // The header is at the beginning, or follows a cache in the older format.
  const std::size_t begin = cache.find(kCacheMagic);
  if (begin == std::string::npos) return std::nullopt;
  const std::string_view bytes = std::string_view(cache).substr(begin);
  CacheHead head{};
  if (bytes.size() < sizeof head) return std::nullopt;
  std::memcpy(&head, bytes.data(), sizeof head);
  if (head.entries > (bytes.size() - sizeof head) / sizeof(CacheEntry)) return std::nullopt;
  for (std::uint32_t i = 0; i < head.entries; ++i) {
    CacheEntry entry{};
    std::memcpy(&entry, bytes.data() + sizeof head + i * sizeof entry, sizeof entry);
    const std::string path(TextAt(bytes, entry.path));
    if (TextAt(bytes, entry.name) == name && IsLibrary(path)) return path;
  }
  return std::nullopt;
}

std::optional<std::string> FindLibrary(const std::string& name, const void* caller) {
  if (name.find('/') != std::string::npos) {
    return IsLibrary(name) ? std::optional(name) : std::nullopt;
  }
  if (const LoadedLibrary loaded = OpenLoaded(name.c_str())) {
    link_map* map = nullptr;
    if (::dlinfo(loaded.get(), RTLD_DI_LINKMAP, &map) == 0) return PathOf(map);
  }
  const auto folders = FoldersOf(caller != nullptr ? caller : OwnCode());
  if (auto found = FindIn(folders, /*defaults=*/false, name)) return found;
  std::ifstream in(kLoaderCache, std::ios::binary);
  const std::string cache{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (auto found = FindInLoaderCache(cache, name)) return found;
  return FindIn(folders, /*defaults=*/true, name);
}

bool IsThisLibrary(const std::string& path) {
  struct stat one {};
  struct stat own {};
  return ::stat(path.c_str(), &one) == 0 && ::stat(PathOf(MapOf(OwnCode())).c_str(), &own) == 0 &&
         one.st_dev == own.st_dev && one.st_ino == own.st_ino;
}

}  // namespace ferry::nccl_net
