// A program that builds against the installed package, as its users do.

#include <cstdio>

#include "ferry/core/result.h"
#include "ferry/core/version.h"

int main() {
  const ferry::Result<int> answer = ferry::Error(ferry::Code::kUnavailable, "no answer yet");
  std::printf("tensorferry %s says %s\n", FERRY_VERSION, answer.error().ToString().c_str());
  return answer ? 1 : 0;
}
