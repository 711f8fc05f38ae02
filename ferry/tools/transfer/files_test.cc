// Tests of file names, mapped files and received files.

#include "ferry/tools/transfer/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace ferry::tools {
namespace {

namespace fs = std::filesystem;

class Files : public testing::Test {
 protected:
  Files() {
    std::string path = (fs::temp_directory_path() / "ferry-files-XXXXXX").string();
    EXPECT_NE(::mkdtemp(path.data()), nullptr);
    root_ = path;
    fs::create_directory(root_ / "in");
  }
  ~Files() override {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }

  std::string in() const { return (root_ / "in").string(); }
  std::string Read(const std::string& name) const {
    std::ifstream file(root_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(root_ / name, std::ios::binary) << text;
  }
  std::ptrdiff_t FilesIn() const { return std::distance(fs::directory_iterator(in()), {}); }

  // Receives `text` as `name`, and keeps it if told so.
  Status Receive(const std::string& name, const std::string& text, bool keep) const {
    FERRY_TRY_ASSIGN(IncomingFile file, IncomingFile::Create(in(), name, text.size()));
    if (!text.empty()) std::memcpy(file.bytes().data(), text.data(), text.size());
    FERRY_TRY(file.Flush());
    return keep ? file.Keep() : Ok();
  }

 private:
  fs::path root_;
};

TEST(BaseName, IsTheLastPartOfAPath) {
  for (const char* path : {"x.bin", "/etc/x.bin", "../../x.bin", "C:\\dir\\x.bin"}) {
    const auto name = BaseNameOf(path);
    ASSERT_TRUE(name) << path;
    EXPECT_EQ(*name, "x.bin");
  }
}

TEST(BaseName, IsRefusedWhereThereIsNone) {
  for (const std::string& path :
       {std::string(), std::string("/"), std::string("a/"), std::string("."), std::string(".."),
        std::string("a/.."), std::string("a\0b", 3)}) {
    EXPECT_FALSE(BaseNameOf(path)) << path;
  }
}

TEST(Sha256, IsThatOfTheStandard) {
  EXPECT_EQ(Sha256(std::as_bytes(std::span("abc", 3))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_F(Files, HaveTheirNameOnlyWhenKept) {
  EXPECT_TRUE(Receive("model", "partial", false));
  EXPECT_EQ(FilesIn(), 0);
  EXPECT_TRUE(Receive("model", "whole", true));
  EXPECT_EQ(Read("in/model"), "whole");
  EXPECT_EQ(FilesIn(), 1);
}

TEST_F(Files, ReplaceAnOlderOneOnlyWhenKept) {
  Write("in/model", "old");
  EXPECT_TRUE(Receive("model", "new", false));
  EXPECT_EQ(Read("in/model"), "old");
  EXPECT_TRUE(Receive("model", "new", true));
  EXPECT_EQ(Read("in/model"), "new");
}

TEST_F(Files, ReplaceALinkAndNotWhatItPointsAt) {
  Write("precious", "untouched");
  fs::create_symlink("../precious", in() + "/model");
  EXPECT_TRUE(Receive("model", "new", true));
  EXPECT_EQ(Read("precious"), "untouched");
  EXPECT_EQ(Read("in/model"), "new");
  EXPECT_FALSE(fs::is_symlink(in() + "/model"));
}

TEST_F(Files, MayBeEmpty) {
  EXPECT_TRUE(Receive("nothing", "", true));
  EXPECT_EQ(Read("in/nothing"), "");
  const auto file = SourceFile::Open(in() + "/nothing");
  ASSERT_TRUE(file);
  EXPECT_TRUE(file->bytes().empty());
}

TEST_F(Files, AreReadThroughAMapping) {
  Write("in/source", "text");
  const auto file = SourceFile::Open(in() + "/source");
  ASSERT_TRUE(file);
  ASSERT_EQ(file->bytes().size(), 4U);
  EXPECT_EQ(std::memcmp(file->bytes().data(), "text", 4), 0);
}

TEST_F(Files, ThatAreNoneAreRefused) {
  EXPECT_EQ(SourceFile::Open(in()).error().code(), Code::kInvalidArgument);
  EXPECT_FALSE(SourceFile::Open(in() + "/missing"));
  EXPECT_FALSE(IncomingFile::Create(in() + "/missing", "x", 1));
}

TEST_F(Files, LargerThanTheDiskAreRefusedBeforeAnyByte) {
  EXPECT_EQ(IncomingFile::Create(in(), "x", std::uint64_t{1} << 62).error().code(),
            Code::kUnavailable);
  EXPECT_FALSE(IncomingFile::Create(in(), "x", ~std::uint64_t{0}));
  EXPECT_EQ(FilesIn(), 0);
}

// On file systems without files that have no name (such as overlays of old kernels) it is named,
// and would be left.
TEST_F(Files, NothingIsLeftOfAProcessThatEndsInTheMiddle) {
  const int nameless = ::open(in().c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
  if (nameless < 0) GTEST_SKIP() << "the file system has no files without names";
  (void)::close(nameless);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto file = IncomingFile::Create(in(), "whole", 1 << 20);
    if (file) std::memset(file->bytes().data(), 1, file->bytes().size());
    ::_exit(file ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(FilesIn(), 0);
}

}  // namespace
}  // namespace ferry::tools
