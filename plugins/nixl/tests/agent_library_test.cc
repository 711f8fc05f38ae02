// Tests what is found of the NIXL library that loads the plug-in, and what is refused.
#include "plugins/nixl/agent_library.h"

#include <elf.h>
#include <gmock/gmock.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "plugins/nixl/abi.h"

namespace ferry::nixl::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr std::uint64_t kTableBytes = (abi::kEngineFunctions + 2) * sizeof(void*);
constexpr const char* kTable = "_ZTV17nixlBackendEngine";

template <class T>
void Append(std::string* file, const T& value) {
  file->append(reinterpret_cast<const char*>(&value), sizeof(T));  // as it is in a file
}

// A shared library that exports one symbol, as far as a reader of its symbols cares.
std::string LibraryWith(std::string_view symbol, std::uint64_t bytes) {
  const std::string names = std::string("\0another\0", 9) + std::string(symbol) + '\0';
  constexpr std::size_t kSections = 2;
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_shoff = sizeof(header);
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = kSections;
  Elf64_Shdr symbols{};
  symbols.sh_type = SHT_DYNSYM;
  symbols.sh_link = 1;
  symbols.sh_offset = sizeof(header) + kSections * sizeof(Elf64_Shdr);
  symbols.sh_size = 2 * sizeof(Elf64_Sym);
  Elf64_Shdr texts{};
  texts.sh_type = SHT_STRTAB;
  texts.sh_offset = symbols.sh_offset + symbols.sh_size;
  texts.sh_size = names.size();
  Elf64_Sym another{};
  another.st_name = 1;
  another.st_shndx = 1;
  another.st_size = 8;
  Elf64_Sym wanted = another;
  wanted.st_name = 9;
  wanted.st_size = bytes;
  std::string file;
  Append(&file, header);
  Append(&file, symbols);
  Append(&file, texts);
  Append(&file, another);
  Append(&file, wanted);
  return file + names;
}

// A folder of packages as a wheel of NIXL leaves it.
class AgentLibraryTest : public ::testing::Test {
 protected:
  AgentLibraryTest() {
    std::string name = ::testing::TempDir() + "ferry_nixl_XXXXXX";
    site_ = mkdtemp(name.data());
    fs::create_directories(libraries() / "plugins");
  }
  ~AgentLibraryTest() override {
    std::error_code ignored;
    fs::remove_all(site_, ignored);
  }

  fs::path libraries() const { return site_ / ".nixl_cu12.mesonpy.libs"; }
  void WriteVersion(std::string_view version) const {
    std::string text("\0text\0NIXL version: \0", 21);
    text.append(version).append(std::string_view("\0 (git: \0", 9));
    Write(libraries() / "libnixl_common.so", text);
  }
  void WriteTable(std::uint64_t bytes) const {
    Write(libraries() / "plugins" / "libplugin_POSIX.so", LibraryWith(kTable, bytes));
  }
  AgentLibrary Inspect() const { return InspectLibrary(libraries() / "libnixl.so"); }
  Judgement Judged() const { return Judge(Inspect()); }
  static void Write(const fs::path& path, std::string_view text) {
    std::ofstream(path, std::ios::binary) << text;
  }

  fs::path site_;
};

TEST_F(AgentLibraryTest, TheVersionAndTheTableAreRead) {
  WriteVersion("1.5.1");
  WriteTable(kTableBytes);
  const AgentLibrary library = Inspect();
  EXPECT_EQ(library.version, "1.5.1");
  EXPECT_EQ(library.engine_functions, abi::kEngineFunctions);
  const Judgement judgement = Judge(library);
  EXPECT_TRUE(judgement.usable);
  EXPECT_EQ(judgement.level, LogLevel::kDebug);
}

TEST_F(AgentLibraryTest, TheWheelsFolderTellsTheVersionWhereTheLibraryDoesNot) {
  fs::create_directories(site_ / "nixl_cu13-1.2.0.dist-info");
  fs::create_directories(site_ / "nixl_cu12-1.4.0.dist-info");
  EXPECT_EQ(Inspect().version, "1.4.0");
  WriteVersion("garbage");
  EXPECT_EQ(Inspect().version, "1.4.0");
  WriteVersion("1.5.1");
  EXPECT_EQ(Inspect().version, "1.5.1");
}

TEST_F(AgentLibraryTest, AnotherMajorVersionIsRefused) {
  for (const char* version : {"2.0.0", "0.10.1", "10.0"}) {
    WriteVersion(version);
    const Judgement judgement = Judged();
    EXPECT_FALSE(judgement.usable) << version;
    EXPECT_EQ(judgement.level, LogLevel::kError);
    EXPECT_THAT(judgement.text, AllOf(HasSubstr(version), HasSubstr("NIXL 1.x only")));
  }
}

TEST_F(AgentLibraryTest, ANewerMinorVersionIsWarnedOf) {
  for (const char* version : {"1.6.0", "1.10.0.dev1"}) {
    WriteVersion(version);
    const Judgement judgement = Judged();
    EXPECT_TRUE(judgement.usable) << version;
    EXPECT_EQ(judgement.level, LogLevel::kWarning);
    EXPECT_THAT(judgement.text, AllOf(HasSubstr(version), HasSubstr("1.0 to 1.5")));
  }
  WriteVersion("1.5.9");
  EXPECT_EQ(Judged().level, LogLevel::kDebug);
}

TEST_F(AgentLibraryTest, AnotherVirtualTableIsRefusedWhateverTheVersion) {
  for (const std::uint64_t bytes : {kTableBytes + 8, kTableBytes - 8}) {
    WriteTable(bytes);
    EXPECT_FALSE(Judged().usable);
    WriteVersion("1.5.1");
    EXPECT_FALSE(Judged().usable);
    EXPECT_THAT(Judged().text, HasSubstr("functions"));
  }
}

TEST_F(AgentLibraryTest, ALibraryThatTellsNothingIsUsed) {
  EXPECT_TRUE(Judged().usable);
  EXPECT_THAT(Judged().text, HasSubstr("unknown version"));
  EXPECT_TRUE(Judge(InspectLibrary("")).usable);
  EXPECT_TRUE(Judge(InspectLibrary("libnixl.so")).usable);
}

TEST_F(AgentLibraryTest, APluginThatIsCutShortOrNotALibraryTellsNothing) {
  const std::string whole = LibraryWith(kTable, kTableBytes);
  const fs::path path = libraries() / "plugins" / "libplugin_UCX.so";
  Write(path, whole);
  EXPECT_EQ(Inspect().engine_functions, abi::kEngineFunctions);
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    Write(path, whole.substr(0, bytes));
    EXPECT_EQ(Inspect().engine_functions, 0U) << bytes;
  }
  Write(path, LibraryWith("_ZTV17nixlBackendEngineOther", kTableBytes));
  EXPECT_EQ(Inspect().engine_functions, 0U);
}

TEST_F(AgentLibraryTest, CodeOfAnotherProgramIsNotOfNixlsLibrary) {
  EXPECT_EQ(LibraryOf(reinterpret_cast<const void*>(&LibraryWith)), "");  // an address of this
  EXPECT_TRUE(MayBeUsedBy(nullptr));
}

}  // namespace
}  // namespace ferry::nixl::testing
