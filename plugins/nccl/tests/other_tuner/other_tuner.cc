// A libnccl-tuner.so that tells when somebody loads it.
#include <cstdlib>

namespace {
[[gnu::constructor]] void OnLoad() { (void)::setenv("FERRY_TEST_TUNER_LOADED", "1", 1); }
}  // namespace
