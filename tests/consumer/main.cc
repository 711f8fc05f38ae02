// A program that builds against the installed package, as its users do.

#include <cstdio>

#include "ferry/ferry.h"

int main() {
  const auto endpoint = ferry::transfer::Endpoint::Create(ferry::Config{});
  if (!endpoint) std::printf("%s\n", endpoint.error().ToString().c_str());
  if (endpoint) std::printf("tensorferry %s: port %u\n", FERRY_VERSION, endpoint->port());
  return endpoint ? 0 : 1;
}
