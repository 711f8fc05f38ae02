// Tests of source files and received files.

#include "tools/transfer/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

namespace {

thread_local std::vector<std::string> steps_to_the_disk;

std::string PathOf(int fd) {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), ignored).string();
}

}  // namespace

// In place of the C library's, for all of this program.
extern "C" int fsync(int fd) {
  struct stat status {};
  const bool folder = ::fstat(fd, &status) == 0 && S_ISDIR(status.st_mode);
  steps_to_the_disk.push_back((folder ? "folder " : "file ") + PathOf(fd));
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

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
  Status Receive(const std::string& name, const std::string& text, bool keep,
                 Existing existing = Existing::kReplaced) const {
    FERRY_TRY_ASSIGN(IncomingFile file, IncomingFile::Create(in(), name, text.size(), existing));
    FERRY_TRY(file.Write(0, std::as_bytes(std::span(text))));
    FERRY_TRY(file.Flush());
    return keep ? file.Keep() : Ok();
  }
  static std::string TextIn(const SourceFile& file) {
    std::string text(file.size(), '\0');
    EXPECT_TRUE(file.Read(0, std::as_writable_bytes(std::span(text))));
    return text;
  }

 private:
  fs::path root_;
};

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

TEST_F(Files, DoNotReplaceAnOlderOneUnlessToldTo) {
  Write("in/model", "old");
  const Status early = Receive("model", "new", true, Existing::kKept);
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().code(), Code::kRefused);
  EXPECT_NE(early.error().message().find("--overwrite"), std::string::npos);
  EXPECT_EQ(Read("in/model"), "old");
}

TEST_F(Files, DoNotReplaceOneThatCameMeanwhile) {
  auto file = IncomingFile::Create(in(), "model", 3, Existing::kKept);
  ASSERT_TRUE(file);
  Write("in/model", "old");
  EXPECT_EQ(file->Keep().error().code(), Code::kRefused);
  EXPECT_EQ(Read("in/model"), "old");
}

TEST_F(Files, KeepALinkThatPointsNowhere) {
  fs::create_symlink("nowhere", in() + "/model");
  EXPECT_EQ(Receive("model", "new", true, Existing::kKept).error().code(), Code::kRefused);
  EXPECT_TRUE(fs::is_symlink(in() + "/model"));
  EXPECT_FALSE(fs::exists(in() + "/nowhere"));
}

TEST_F(Files, NeverReplaceAFolder) {
  fs::create_directory(in() + "/model");
  for (const Existing existing : {Existing::kKept, Existing::kReplaced}) {
    EXPECT_FALSE(Receive("model", "new", true, existing));
  }
  EXPECT_TRUE(fs::is_directory(in() + "/model"));
  EXPECT_EQ(FilesIn(), 1);
}

// The bytes before the name, as the name must not be there without them.
TEST_F(Files, AreOnTheDiskWithTheirNamesWhenTheyAreKept) {
  for (const Existing existing : {Existing::kKept, Existing::kReplaced}) {
    steps_to_the_disk.clear();
    ASSERT_TRUE(Receive(existing == Existing::kKept ? "first" : "second", "x", true, existing));
    ASSERT_EQ(steps_to_the_disk.size(), 2U);
    EXPECT_EQ(steps_to_the_disk[0].find("file "), 0U) << steps_to_the_disk[0];
    EXPECT_EQ(steps_to_the_disk[1], "folder " + in());
  }
  EXPECT_EQ(FilesIn(), 2);
}

// The file's name and its bytes are separate writes: a full disk shows in the latter.
TEST_F(Files, AFullDiskIsAnErrorAndLeavesNothing) {
  const pid_t child = ::fork();
  if (child == 0) {
    (void)::signal(SIGXFSZ, SIG_IGN);  // as CatchSignals() does
    const rlimit limit{4096, 4096};
    auto file = IncomingFile::Create(in(), "large", 8192, Existing::kKept);
    const std::array<std::byte, 8192> bytes{};
    const bool limited = ::setrlimit(RLIMIT_FSIZE, &limit) == 0;
    const Status written = file ? file->Write(0, bytes) : Status(file.error());
    ::_exit(limited && !written && written.error().code() == Code::kUnavailable ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(fs::exists(in() + "/large"));
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
  EXPECT_EQ(file->size(), 0U);
  EXPECT_TRUE(file->CheckUnchanged());
}

TEST_F(Files, AreReadFromAnyOffset) {
  Write("in/source", "text");
  const auto file = SourceFile::Open(in() + "/source");
  ASSERT_TRUE(file);
  EXPECT_EQ(TextIn(*file), "text");
  std::array<std::byte, 2> end{};
  ASSERT_TRUE(file->Read(2, end));
  EXPECT_EQ(std::memcmp(end.data(), "xt", 2), 0);
}

TEST_F(Files, ThatChangeWhileTheyAreReadSaySo) {
  const struct {
    const char* how;
    std::function<void(const std::string& path)> change;
  } kChanges[] = {
      {"shorter", [](const auto& path) { fs::resize_file(path, 2); }},
      {"longer", [](const auto& path) { fs::resize_file(path, 9000); }},
      {"written",
       [](const auto& path) {
         std::ofstream(path, std::ios::in | std::ios::binary) << "TEXT";
         fs::last_write_time(path, fs::last_write_time(path) + std::chrono::hours(1));
       }},
  };
  for (const auto& [how, change] : kChanges) {
    Write("in/big", "text");
    const auto file = SourceFile::Open(in() + "/big");
    ASSERT_TRUE(file);
    EXPECT_TRUE(file->CheckUnchanged()) << how;
    change(in() + "/big");
    const Status same = file->CheckUnchanged();
    ASSERT_FALSE(same) << how;
    EXPECT_EQ(same.error().code(), Code::kUnavailable);
    EXPECT_NE(same.error().message().find("big changed while it was sent"), std::string::npos);
  }
}

TEST_F(Files, ThatEndBeforeTheirSizeAreAnErrorAndNoSignal) {
  Write("in/big", std::string(9000, 'x'));
  const auto file = SourceFile::Open(in() + "/big");
  ASSERT_TRUE(file);
  fs::resize_file(in() + "/big", 100);
  std::vector<std::byte> into(9000);
  const Status read = file->Read(0, into);
  ASSERT_FALSE(read);
  EXPECT_NE(read.error().message().find("big changed while it was sent: it had 9000 bytes, and "
                                        "ends after 100"),
            std::string::npos)
      << read.error().message();
}

TEST_F(Files, APipeIsNoSourceAndDoesNotBlock) {
  ASSERT_EQ(::mkfifo((in() + "/pipe").c_str(), 0600), 0);
  EXPECT_EQ(SourceFile::Open(in() + "/pipe").error().code(), Code::kInvalidArgument);
}

TEST_F(Files, ThatAreNoneAreRefused) {
  EXPECT_EQ(SourceFile::Open(in()).error().code(), Code::kInvalidArgument);
  EXPECT_FALSE(SourceFile::Open(in() + "/missing"));
  EXPECT_FALSE(IncomingFile::Create(in() + "/missing", "x", 1, Existing::kKept));
}

TEST_F(Files, LargerThanTheDiskAreRefusedBeforeAnyByte) {
  for (const std::uint64_t size : {std::uint64_t{1} << 62, ~std::uint64_t{0}}) {
    EXPECT_EQ(IncomingFile::Create(in(), "x", size, Existing::kKept).error().code(),
              Code::kUnavailable);
  }
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
    auto file = IncomingFile::Create(in(), "whole", 1 << 20, Existing::kKept);
    const std::vector<std::byte> bytes(1 << 20);
    ::_exit(file && file->Write(0, bytes) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(FilesIn(), 0);
}

}  // namespace
}  // namespace ferry::tools
