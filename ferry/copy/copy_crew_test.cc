// Tests of the parallel memcpy.
#include "ferry/copy/copy_crew.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "ferry/core/testing/random_bytes.h"

namespace ferry {
namespace {

TEST(CopyCrew, EveryByteIsCopiedAndNoneBeside) {
  const std::vector<std::byte> source = RandomBytes((3 << 20) + 50, 1);
  for (const int threads : {1, 2, 3, 7}) {
    const auto crew = *CopyCrew::Create(threads);
    for (const std::size_t bytes :
         {std::size_t{0}, std::size_t{1}, std::size_t{4095}, std::size_t{262'144},
          std::size_t{1'000'003}, std::size_t{3 << 20}, source.size() - 5}) {
      std::vector<std::byte> got(bytes + 2, std::byte{0x5a});
      crew->Copy(got.data() + 1, source.data() + 3, bytes);
      EXPECT_TRUE(std::equal(got.begin() + 1, got.end() - 1, source.begin() + 3))
          << threads << " threads, " << bytes << " bytes";
      EXPECT_EQ(got.front(), std::byte{0x5a});
      EXPECT_EQ(got.back(), std::byte{0x5a});
    }
  }
}

TEST(CopyCrew, EachCopyIsWholeBeforeTheNextBegins) {
  const auto crew = *CopyCrew::Create(3);
  std::vector<std::byte> source(600'000);
  std::vector<std::byte> got(source.size());
  for (int round = 0; round < 200; ++round) {
    std::fill(source.begin(), source.end(), static_cast<std::byte>(round));
    crew->Copy(got.data(), source.data(), got.size());
    ASSERT_TRUE(got == source) << "round " << round;
  }
}

TEST(CopyCrew, EndsWithoutHavingCopied) {
  for (const int threads : {1, 2, 8}) EXPECT_TRUE(CopyCrew::Create(threads));
}

#if !defined(__SANITIZE_THREAD__)  // which does not follow a process with threads through fork()
TEST(CopyCrew, OfAParentCopiesInAForkedChildByItsCallerAloneAndEnds) {
  auto crew = *CopyCrew::Create(3);
  const std::vector<std::byte> source(2'000'000, std::byte{7});
  std::vector<std::byte> got(source.size());
  const pid_t child = ::fork();
  if (child == 0) {
    (void)::alarm(60);  // ends a child that waits for the threads
    crew->Copy(got.data(), source.data(), got.size());
    crew.reset();
    ::_exit(got == source ? 3 : 4);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 3);
  crew->Copy(got.data(), source.data(), got.size());
  EXPECT_TRUE(got == source);
}
#endif

}  // namespace
}  // namespace ferry
