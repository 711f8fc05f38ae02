// Tests of what a forked child does with its parent's objects.
#include "ferry/core/fork.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <string>

#include "ferry/core/fd.h"
#include "ferry/core/testing/forked_child.h"

namespace ferry {
namespace {

TEST(ForkTest, AMarkTellsAChildFromTheProcessThatMadeTheObject) {
  FERRY_SKIP_FORK_TEST();
  const ProcessMark mark;
  EXPECT_FALSE(mark.forked());
  EXPECT_EQ(StatusOfChild([&] {
              const ProcessMark own;
              const ProcessMark copy = mark;
              const int grandchild =
                  StatusOfChild([&] { return mark.forked() && own.forked() ? 3 : 0; });
              return mark.forked() && copy.forked() && !own.forked() ? grandchild : 0;
            }),
            3);
  EXPECT_FALSE(mark.forked());
}

TEST(ForkTest, TheErrorSaysWhatIsWrongAndWhatToDo) {
  const Error error = MadeBeforeFork("region");
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_NE(error.message().find("this region was made before fork()"), std::string::npos);
  EXPECT_NE(error.message().find("create an endpoint in the child"), std::string::npos);
}

struct EndsTheProcess {
  ~EndsTheProcess() { ::_exit(9); }
};

TEST(ForkTest, AChildDestroysNothingThatItsParentShares) {
  FERRY_SKIP_FORK_TEST();
  auto* const object = new EndsTheProcess;
  const auto destroy = [](EndsTheProcess* /*kept*/) { ::_exit(9); };
  EXPECT_EQ(
      StatusOfChild([&] {
        const ProcessShared<EndsTheProcess> own(std::shared_ptr<EndsTheProcess>(object, destroy));
        return 0;
      }),
      9);
  auto* const shared =
      new ProcessShared<EndsTheProcess>(std::shared_ptr<EndsTheProcess>(object, destroy));
  EXPECT_EQ(StatusOfChild([&] {
              ProcessShared<EndsTheProcess> copy = *shared;
              ProcessShared<EndsTheProcess> moved = std::move(copy);
              moved = ProcessShared<EndsTheProcess>();
              delete shared;
              return moved.forked() ? 1 : 4;
            }),
            4);
  // This process does not destroy it either; that would end the process.
  [[maybe_unused, gnu::used]] static ProcessShared<EndsTheProcess>* reachable;  // for leak checkers
  reachable = shared;
}

struct Locked {
  std::mutex mutex;
  int number = 1;
};

TEST(ForkTest, AChildHasAStaticObjectOfItsOwnWhateverItsParentHasLocked) {
  FERRY_SKIP_FORK_TEST();
  static PerProcess<Locked> locked;
  locked.Get().number = 2;
  const std::lock_guard held(locked.Get().mutex);
  EXPECT_EQ(StatusOfChild([&] {
              const std::lock_guard lock(locked.Get().mutex);
              return locked.Get().number == 1 ? 5 : 0;
            }),
            5);
  EXPECT_EQ(locked.Get().number, 2);
}

TEST(ForkTest, AChildClosesWhatItIsToldToAndNothingElse) {
  FERRY_SKIP_FORK_TEST();
  const UniqueFd kept(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  UniqueFd closed = ClosedInChildren(UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)));
  const int number = closed.get();
  const auto open_in_child = [&] {
    return StatusOfChild([&] {
      const bool has_kept = ::fcntl(kept.get(), F_GETFD) >= 0;
      return (has_kept ? 2 : 0) + (::fcntl(number, F_GETFD) >= 0 ? 1 : 0);
    });
  };
  EXPECT_EQ(open_in_child(), 2);
  EXPECT_GE(::fcntl(number, F_GETFD), 0);
  // Once closed, the number may be reused.
  closed.reset();
  const UniqueFd again(::fcntl(kept.get(), F_DUPFD_CLOEXEC, number));
  ASSERT_EQ(again.get(), number);
  EXPECT_EQ(open_in_child(), 3);
}

}  // namespace
}  // namespace ferry
