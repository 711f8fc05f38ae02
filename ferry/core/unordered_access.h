// Hides accesses to user memory from ThreadSanitizer.
#pragma once

#if defined(__SANITIZE_THREAD__)
extern "C" {
void __tsan_ignore_thread_begin();
void __tsan_ignore_thread_end();
}
#endif

namespace ferry {

// While one lives, ThreadSanitizer ignores this thread's memory accesses. For system calls and
// copies that move user memory: two transfers of the same bytes are ordered, if at all, by the
// peer's actions between them, which the sanitizer cannot see, and may be unordered, as with RDMA.
class UnorderedAccess {
 public:
#if defined(__SANITIZE_THREAD__)
  UnorderedAccess() { __tsan_ignore_thread_begin(); }
  ~UnorderedAccess() { __tsan_ignore_thread_end(); }
#else
  UnorderedAccess() {}   // NOLINT(modernize-use-equals-default): else it counts as unused
  ~UnorderedAccess() {}  // NOLINT(modernize-use-equals-default)
#endif
  UnorderedAccess(const UnorderedAccess&) = delete;
  UnorderedAccess& operator=(const UnorderedAccess&) = delete;
};

}  // namespace ferry
