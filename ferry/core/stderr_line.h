// Lines on stderr that neither block nor end the process.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ferry {

enum class LineLimit : std::uint8_t {
  kNone,
  kPerSecond,  // for lines that others can cause: at most kMaxLinesPerSecond of the process
};
constexpr int kMaxLinesPerSecond = 100;

// The text with each control character as \xNN: one line that no peer can forge others with.
std::string EscapeControls(std::string_view text);

// Writes "<text>\n" to stderr, with EscapeControls(). Neither blocks nor raises a signal: where
// stderr is full, closed, or no longer a file, pipe, terminal or Unix socket, the line is lost, and
// so is every line of a process whose descriptor 2 was closed when it loaded this library. The next
// line that is written follows one that tells how many were lost. Any thread; lines do not
// interleave.
void WriteStderrLine(std::string_view text, LineLimit limit) noexcept;

namespace internal {
// Writes the bytes as they are; returns how many stderr took. Takes no lock.
std::size_t WriteStderr(std::string_view bytes) noexcept;

// Allows as many limited lines as a new second does. For tests, which share a process.
void ResetLineLimit();
}  // namespace internal

}  // namespace ferry
