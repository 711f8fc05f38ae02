// The sending end of a stand-in connection.
#pragma once
#include <array>
#include <memory>
#include <vector>

#include "standin/comm.h"

namespace ferry::standin {

class SendComm final : public Comm {
 public:
  // `attempt` is shared with the thread that makes it.
  SendComm(Engine& engine, int device, std::shared_ptr<Attempt> attempt);

  // *request stays null while there is no connection yet.
  int Send(const Posting& posting, void** request);

 private:
  int Progress() override;
  bool Complete(std::uint64_t number) override;
  bool Work(Lane& lane, const Task& task) override;
  void CollectedOne(const Task& task) override;
  void Release() override { attempt_.reset(); }

  bool Announce(const ControlRecord& record);
  bool Flush();
  bool SplitOne(std::uint64_t number);
  bool SendBytes(Lane& lane, const Task& task, std::uint64_t from, std::uint64_t bytes);

  std::shared_ptr<Attempt> attempt_;  // null once its link is ours
  std::vector<std::byte> unsent_;     // records that the control socket had no room for
  bool control_failed_ = false;
  std::vector<int> in_flight_;  // tasks, of each lane
  std::size_t next_lane_ = 0;
  std::array<Fault, kRequests> faults_ = {};
};

}  // namespace ferry::standin
