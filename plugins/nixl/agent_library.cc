// Reads the version and the interface of the NIXL library that loads the plug-in.
#include "plugins/nixl/agent_library.h"

#include <dirent.h>
#include <dlfcn.h>
#include <elf.h>
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "plugins/nixl/abi.h"

namespace ferry::nixl {
namespace {

// By strings: std::filesystem would add its part of the C++ library to the plug-in.
std::string_view FolderOf(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? "." : path.substr(0, slash);
}

std::string_view NameOf(std::string_view path) { return path.substr(path.rfind('/') + 1); }

constexpr std::string_view kEngineTable = "_ZTV17nixlBackendEngine";
constexpr std::size_t kTableHeaderSlots = 2;  // of a virtual table: offset to top, type

// Empty where it cannot be read.
std::string ContentOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// ---- version ------------------------------------------------------------------------------------

std::size_t VersionLength(std::string_view text) {
  const std::size_t end = text.find_first_not_of("0123456789.abcdefghijklmnopqrstuvwxyz+-");
  return std::min(end, text.size());
}

std::optional<std::pair<int, int>> MajorAndMinor(std::string_view version) {
  std::pair<int, int> parsed;
  const char* const end = version.data() + version.size();
  const auto major = std::from_chars(version.data(), end, parsed.first);
  if (major.ec != std::errc() || major.ptr == end || *major.ptr != '.') return std::nullopt;
  if (std::from_chars(major.ptr + 1, end, parsed.second).ec != std::errc()) return std::nullopt;
  return parsed;
}

// The library logs its version at start; both texts follow each other in its constants.
std::string VersionInBinary(const std::string& common) {
  constexpr std::string_view kMark{"NIXL version: \0", 15};
  const std::string content = ContentOf(common);
  const std::size_t mark = content.find(kMark);
  if (mark == std::string::npos) return {};
  const std::string_view rest = std::string_view(content).substr(mark + kMark.size(), 64);
  const std::string_view version = rest.substr(0, VersionLength(rest));
  return MajorAndMinor(version) ? std::string(version) : std::string();
}

// The wheel has its libraries in ".nixl_cu12.mesonpy.libs", beside "nixl_cu12-1.5.1.dist-info".
std::string VersionOfWheel(const std::string& libraries) {
  const std::string_view folder = NameOf(libraries);
  if (!folder.starts_with(".")) return {};
  const std::string package = std::string(folder.substr(1, folder.find('.', 1) - 1)) + "-";
  const std::unique_ptr<DIR, int (*)(DIR*)> site(opendir(std::string(FolderOf(libraries)).c_str()),
                                                 closedir);
  while (const dirent* const entry = site ? readdir(site.get()) : nullptr) {
    const std::string_view name = entry->d_name;
    const std::size_t end = name.find(".dist-info");
    if (!name.starts_with(package) || end == std::string_view::npos) continue;
    return std::string(name.substr(package.size(), end - package.size()));
  }
  return {};
}

// ---- virtual table ------------------------------------------------------------------------------

// Nullopt where the file ends before.
template <class T>
std::optional<T> At(std::string_view file, std::uint64_t offset) {
  if (offset > file.size() || file.size() - offset < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, file.data() + offset, sizeof(T));
  return value;
}

std::optional<Elf64_Shdr> Section(std::string_view file, const Elf64_Ehdr& header,
                                  std::size_t index) {
  if (index >= header.e_shnum) return std::nullopt;
  return At<Elf64_Shdr>(file, header.e_shoff + index * sizeof(Elf64_Shdr));
}

// Bytes of the symbol in a table of symbols; 0 where it is not defined there.
std::size_t BytesIn(std::string_view file, const Elf64_Shdr& table, const Elf64_Shdr& names,
                    std::string_view symbol) {
  for (std::size_t at = 0; at < table.sh_size; at += sizeof(Elf64_Sym)) {
    const auto entry = At<Elf64_Sym>(file, table.sh_offset + at);
    if (!entry) return 0;
    const std::uint64_t name = names.sh_offset + entry->st_name;
    if (name >= file.size() || entry->st_shndx == SHN_UNDEF) continue;
    // With its end, so that a longer name is another one.
    const std::string_view text = file.substr(name, symbol.size() + 1);
    if (text.starts_with(symbol) && text.back() == '\0') return entry->st_size;
  }
  return 0;
}

// Bytes of a symbol that a shared library exports; 0 where there is none.
std::size_t ExportedBytes(std::string_view file, std::string_view symbol) {
  const auto header = At<Elf64_Ehdr>(file, 0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 ||
      header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_shentsize != sizeof(Elf64_Shdr)) {
    return 0;
  }
  for (std::size_t i = 0; i < header->e_shnum; ++i) {
    const auto table = Section(file, *header, i);
    if (!table || table->sh_type != SHT_DYNSYM) continue;
    const auto names = Section(file, *header, table->sh_link);
    return names ? BytesIn(file, *table, *names, symbol) : 0;
  }
  return 0;
}

// NIXL's plug-ins are built with its library and export the virtual table of their base class.
std::size_t EngineFunctions(const std::string& libraries) {
  for (const char* plugin : {"/plugins/libplugin_POSIX.so", "/plugins/libplugin_UCX.so"}) {
    const std::size_t bytes = ExportedBytes(ContentOf(libraries + plugin), kEngineTable);
    const std::size_t slots = bytes / sizeof(void*);
    if (slots > kTableHeaderSlots) return slots - kTableHeaderSlots;
  }
  return 0;
}

}  // namespace

std::string LibraryOf(const void* code) {
  Dl_info found{};
  if (dladdr(code, &found) == 0 || found.dli_fname == nullptr) return {};
  const std::string_view path = found.dli_fname;
  return NameOf(path).starts_with("libnixl.so") ? std::string(path) : std::string();
}

AgentLibrary InspectLibrary(const std::string& path) {
  AgentLibrary library{.path = path, .version = {}};
  if (path.empty()) return library;
  const std::string libraries(FolderOf(path));
  library.version = VersionInBinary(libraries + "/libnixl_common.so");
  if (library.version.empty()) library.version = VersionOfWheel(libraries);
  library.engine_functions = EngineFunctions(libraries);
  return library;
}

Judgement Judge(const AgentLibrary& library) {
  const auto version = MajorAndMinor(library.version);
  const std::string name =
      fmt::format("NIXL {} ({})", version ? library.version : "of unknown version",
                  library.path.empty() ? "not loaded from libnixl.so" : library.path);
  if (version && version->first != abi::kMajorVersion) {
    return {false, LogLevel::kError,
            fmt::format("{} cannot use this plug-in, which works with NIXL {}.x only; install a "
                        "NIXL of that version or a plug-in for the other one",
                        name, abi::kMajorVersion)};
  }
  if (library.engine_functions != 0 && library.engine_functions != abi::kEngineFunctions) {
    return {false, LogLevel::kError,
            fmt::format("{} cannot use this plug-in: its back ends have {} functions, those of the "
                        "known versions have {}; install a plug-in for that version",
                        name, library.engine_functions, abi::kEngineFunctions)};
  }
  if (version && version->second > abi::kNewestMinorVersion) {
    return {true, LogLevel::kWarning,
            fmt::format("{} is newer than the versions that this plug-in knows, {}.0 to {}.{}; if "
                        "it misbehaves, install one of those or a newer plug-in",
                        name, abi::kMajorVersion, abi::kMajorVersion, abi::kNewestMinorVersion)};
  }
  return {true, LogLevel::kDebug,
          fmt::format("loaded by {}, whose back ends have {} functions", name,
                      library.engine_functions == 0 ? "an unknown number of"
                                                    : std::to_string(library.engine_functions))};
}

bool MayBeUsedBy(const void* caller) noexcept {
  try {
    const Judgement judgement = Judge(InspectLibrary(LibraryOf(caller)));
    Log(judgement.level, judgement.text);
    return judgement.usable;
  } catch (const std::exception& error) {
    // A file cannot be read, or memory is short: nothing speaks against the library.
    Log(LogLevel::kInfo, error.what());
    return true;
  }
}

}  // namespace ferry::nixl
