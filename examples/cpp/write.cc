// One complete write: two endpoints of this process, a registered region on each side, a key that
// goes from one to the other, and a notification that arrives after the bytes.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <span>
#include <string_view>
#include <vector>

#include "ferry/ferry.h"

namespace {

using ferry::Deadline;
using ferry::Status;
using ferry::transfer::Endpoint;

Deadline Soon() { return Deadline::After(std::chrono::seconds(10)); }

Status Run() {
  const ferry::Config config;
  FERRY_TRY_ASSIGN(Endpoint target, Endpoint::Create(config));
  FERRY_TRY_ASSIGN(Endpoint source, Endpoint::Create(config));

  // The target allows peers to write to its memory.
  std::vector<std::byte> there(1 << 20);
  FERRY_TRY_ASSIGN(auto target_region, target.Register(there, ferry::transfer::Rights::kWrite));

  // The address and the key are bytes, which programs exchange in any way they have.
  const std::vector<std::byte> key = target_region.key();
  FERRY_TRY_ASSIGN(auto to_target, source.Connect(target.address(), Soon()));
  FERRY_TRY_ASSIGN(auto from_source, target.Accept(Soon()));

  // The source's own operations may use its region, whatever its rights allow peers.
  std::vector<std::byte> here(there.size(), std::byte{42});
  FERRY_TRY_ASSIGN(auto source_region, source.Register(here, ferry::transfer::Rights::kNone));
  FERRY_TRY_ASSIGN(const auto remote, to_target.Import(key));

  const std::string_view text = "the bytes are there";
  FERRY_TRY_ASSIGN(auto write, to_target.Write(source_region, 0, remote, 0, here.size(),
                                               {.deadline = Soon(),
                                                .notification = std::as_bytes(std::span(text))}));
  FERRY_TRY_ASSIGN(const auto heard, from_source.TakeNotification(Soon()));
  FERRY_TRY(write.Wait());
  std::printf("wrote %zu bytes; heard %zu bytes of notification\n", here.size(), heard.size());
  return std::equal(here.begin(), here.end(), there.begin())
             ? ferry::Ok()
             : Status(ferry::Error(ferry::Code::kInternal, "the bytes differ"));
}

}  // namespace

int main() {
  const Status status = Run();
  if (!status) std::fprintf(stderr, "%s\n", status.error().ToString().c_str());
  return status ? 0 : 1;
}
