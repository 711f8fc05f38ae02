// Tests `ferry transfer` with a file that is larger than any buffer it passes.

#include <fcntl.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ferry/core/check.h"
#include "ferry/core/crc32c.h"
#include "ferry/core/units.h"
#include "tests/support/engine_peer.h"

namespace ferry::tests {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t kFileBytes = (kSanitized ? 100 * kMiB : kGiB) + 4321;

class Folder {
 public:
  Folder() {
    std::string path = (fs::temp_directory_path() / "ferry-transfer-XXXXXX").string();
    FERRY_CHECK(::mkdtemp(path.data()) != nullptr, errno);
    path_ = path;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

// A file's bytes; of `size`, if it is to be made.
class MappedFile {
 public:
  MappedFile(const std::string& path, int flags, std::uint64_t size = 0)
      : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0600)) {
    FERRY_CHECK(fd_, path, errno);
    if (size > 0) FERRY_CHECK(::ftruncate(fd_.get(), static_cast<off_t>(size)) == 0, errno);
    const auto length = static_cast<std::size_t>(::lseek(fd_.get(), 0, SEEK_END));
    const int access = (flags & O_ACCMODE) == O_RDONLY ? PROT_READ : PROT_READ | PROT_WRITE;
    void* const at = ::mmap(nullptr, length, access, MAP_SHARED, fd_.get(), 0);
    FERRY_CHECK(at != MAP_FAILED, errno);
    bytes_ = {static_cast<std::byte*>(at), length};
  }
  ~MappedFile() { (void)::munmap(bytes_.data(), bytes_.size()); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  UniqueFd fd_;
  std::span<std::byte> bytes_;
};

json NextLine(PeerProcess& process) {
  return json::parse(Must(process.Hear(TestDeadline())), nullptr, /*allow_exceptions=*/false);
}

TEST(TransferProgram, CarriesALargeFileBetweenTwoProcesses) {
  const Folder here;
  const Folder there;
  const MappedFile sent(here / "model", O_RDWR | O_CREAT, kFileBytes);
  Fill(sent.bytes(), 1);
  const auto server =
      Must(PeerProcess::StartProgram({FERRY_BINARY, "transfer", "server", "--dir", there / "",
                                      "--listen", "127.0.0.1", "--port", "0", "--once", "--json"}));
  const std::string address = NextLine(*server).value("listening", "");
  const auto client = Must(PeerProcess::StartProgram(
      {FERRY_BINARY, "transfer", "client", address, "--file", here / "model", "--json"}));
  const json client_says = NextLine(*client);
  const json server_says = NextLine(*server);
  EXPECT_EQ(Must(client->WaitExit(TestDeadline())), 0);
  EXPECT_EQ(Must(server->WaitExit(TestDeadline())), 0);

  EXPECT_EQ(client_says.value("bytes", std::uint64_t{0}), kFileBytes);
  EXPECT_TRUE(client_says.value("identical", false)) << client_says;
  EXPECT_EQ(client_says.value("sha256", "none"), server_says.value("sha256", ""));
  const MappedFile received(there / "model", O_RDONLY);
  ASSERT_EQ(received.bytes().size(), kFileBytes);
  EXPECT_EQ(Crc32c(received.bytes()), Crc32c(sent.bytes()));
}

}  // namespace
}  // namespace ferry::tests
