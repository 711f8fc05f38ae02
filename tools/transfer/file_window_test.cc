// Tests of the windows that files pass through.

#include "tools/transfer/file_window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace ferry::tools {
namespace {

Config WithTwoGpus(const char* id) {
  Config config;
  EXPECT_TRUE(config.Set("devices", std::string("simulated:2:") + id));
  return config;
}

TEST(FileWindow, IsNoMoreThanTheFileAndOfTheSizeOfItsKindOfMemory) {
  const Config config = WithTwoGpus("104");
  EXPECT_EQ(FileWindow::Of(100, {}, config)->window(), 100U);
  EXPECT_EQ(FileWindow::Of(kHostWindowBytes + 1, {}, config)->window(), kHostWindowBytes);
  EXPECT_EQ(FileWindow::Of(100, {1}, config)->window(), 100U);
  EXPECT_TRUE(FileWindow().memory().empty());
}

TEST(FileWindow, OfAnEmptyFileNeedsNoMemoryButAGpu) {
  EXPECT_EQ(FileWindow::Of(0, {}, WithTwoGpus("105"))->window(), 0U);
  EXPECT_EQ(FileWindow::Of(0, {1}, WithTwoGpus("105"))->window(), 0U);
  EXPECT_FALSE(FileWindow::Of(0, {2}, WithTwoGpus("105")));
}

// Through a window of each kind of memory.
class FileThroughAWindow : public testing::TestWithParam<int> {
 protected:
  FileThroughAWindow() : file_(10'000), copy_(file_.size()) {
    for (std::size_t i = 0; i < file_.size(); ++i) file_[i] = static_cast<std::byte>(i % 251);
  }
  Status Pass(FileWindow* window, std::uint64_t at, std::uint64_t bytes) {
    FERRY_TRY(window->Load(at, bytes, [&](std::uint64_t from, std::span<std::byte> into) {
      std::copy_n(&file_[from], into.size(), into.begin());
      return Ok();
    }));
    return window->Store(at, bytes, [&](std::uint64_t to, std::span<const std::byte> part) {
      std::copy(part.begin(), part.end(), &copy_[to]);
      return Ok();
    });
  }

  std::vector<std::byte> file_;
  std::vector<std::byte> copy_;
};

TEST_P(FileThroughAWindow, GoesAroundInIt) {
  auto window = FileWindow::Of(file_.size(), {GetParam()}, WithTwoGpus("106"), 4096);
  ASSERT_TRUE(window) << window.error().ToString();
  EXPECT_EQ(window->window(), 4096U);
  EXPECT_EQ(window->piece_bytes(), 1024U);
  for (std::uint64_t at = 0; at < file_.size();) {
    const std::uint64_t bytes = std::min<std::uint64_t>(3000, file_.size() - at);
    ASSERT_TRUE(Pass(&*window, at, bytes));
    at += bytes;
  }
  EXPECT_TRUE(file_ == copy_);
}

TEST_P(FileThroughAWindow, EndsWithTheErrorOfItsSource) {
  auto window = FileWindow::Of(file_.size(), {GetParam()}, WithTwoGpus("107"));
  ASSERT_TRUE(window) << window.error().ToString();
  const Status loaded = window->Load(0, 10, [](std::uint64_t, std::span<std::byte>) -> Status {
    return Error(Code::kUnavailable, "it has shrunk");
  });
  EXPECT_EQ(loaded.error().message(), "it has shrunk");
}

INSTANTIATE_TEST_SUITE_P(Memories, FileThroughAWindow, testing::Values(-1, 0), [](const auto& gpu) {
  return std::string(gpu.param < 0 ? "host" : "cuda");
});

}  // namespace
}  // namespace ferry::tools
