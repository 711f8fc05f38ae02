// Tests of the parallel memcpy.
#include "ferry/copy/parallel_memcpy.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "ferry/core/testing/random_bytes.h"

namespace ferry {
namespace {

TEST(ParallelMemcpy, EveryByteIsCopiedAndNoneBeside) {
  const std::vector<std::byte> source = RandomBytes((3 << 20) + 50, 1);
  for (const int threads : {1, 2, 3, 7}) {
    const auto parallel_memcpy = *ParallelMemcpy::Create(threads);
    for (const std::size_t bytes :
         {std::size_t{0}, std::size_t{1}, std::size_t{4095}, std::size_t{262'144},
          std::size_t{1'000'003}, std::size_t{3 << 20}, source.size() - 5}) {
      std::vector<std::byte> got(bytes + 2, std::byte{0x5a});
      parallel_memcpy->Copy(got.data() + 1, source.data() + 3, bytes);
      EXPECT_TRUE(std::equal(got.begin() + 1, got.end() - 1, source.begin() + 3))
          << threads << " threads, " << bytes << " bytes";
      EXPECT_EQ(got.front(), std::byte{0x5a});
      EXPECT_EQ(got.back(), std::byte{0x5a});
    }
  }
}

TEST(ParallelMemcpy, EachCopyIsWholeBeforeTheNextBegins) {
  const auto parallel_memcpy = *ParallelMemcpy::Create(3);
  std::vector<std::byte> source(600'000);
  std::vector<std::byte> got(source.size());
  for (int round = 0; round < 200; ++round) {
    std::fill(source.begin(), source.end(), static_cast<std::byte>(round));
    parallel_memcpy->Copy(got.data(), source.data(), got.size());
    ASSERT_TRUE(got == source) << "round " << round;
  }
}

TEST(ParallelMemcpy, EndsWithoutHavingCopied) {
  for (const int threads : {1, 2, 8}) EXPECT_TRUE(ParallelMemcpy::Create(threads));
}

#if !defined(__SANITIZE_THREAD__)  // which does not follow a process with threads through fork()
TEST(ParallelMemcpy, OfAParentCopiesInAForkedChildByItsCallerAloneAndEnds) {
  auto parallel_memcpy = *ParallelMemcpy::Create(3);
  const std::vector<std::byte> source(2'000'000, std::byte{7});
  std::vector<std::byte> got(source.size());
  const pid_t child = ::fork();
  if (child == 0) {
    (void)::alarm(60);  // ends a child that waits for the threads
    parallel_memcpy->Copy(got.data(), source.data(), got.size());
    parallel_memcpy.reset();
    ::_exit(got == source ? 3 : 4);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 3);
  parallel_memcpy->Copy(got.data(), source.data(), got.size());
  EXPECT_TRUE(got == source);
}
#endif

}  // namespace
}  // namespace ferry
