// Buffered socket I/O beneath OpenSSL.
#pragma once
#include <openssl/bio.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace ferry::net::tcp {

// The socket beneath a TLS stream. Reads ahead and buffers output until Flush(), so that a record
// (at most 16 KiB) does not cost a system call of its own. OpenSSL's read-ahead (as of 3.0) moves
// its buffered bytes to the front for each record.
class TlsSocket {
 public:
  explicit TlsSocket(int fd);

  // A BIO for SSL_set_bio() that refers to this object; call once.
  BIO* MakeBio();

  // Permits one read of the socket, until this is called again.
  void AllowRead() noexcept {
    may_read_ = true;
    drained_ = false;
  }
  // Ends the input for good: every read fails from now on.
  void Stop() noexcept { stopped_ = true; }
  bool stopped() const noexcept { return stopped_; }
  // Sets how many bytes are read ahead from now on.
  void SetReadAhead(std::size_t bytes) { wanted_ = bytes; }
  // Queues bytes that are not a record of the stream.
  void Queue(std::span<const std::byte> bytes) {
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }
  // Sends the queued bytes; returns false, with errno, while some are left.
  bool Flush();

  bool drained() const noexcept { return drained_; }  // by the last read
  bool at_end() const noexcept { return at_end_; }
  int error() const noexcept { return error_; }  // of a read; 0: none
  std::size_t held() const noexcept { return in_end_ - in_begin_; }
  std::size_t unsent() const noexcept { return out_.size() - out_begin_; }
  // The first bytes that the peer sent, at most 8.
  std::span<const std::byte> first() const noexcept { return {first_, first_bytes_}; }

 private:
  static const BIO_METHOD* Method();
  static int OnRead(BIO* bio, char* to, int bytes);
  static int OnWrite(BIO* bio, const char* from, int bytes);
  static long OnControl(BIO* bio, int command, long number, void* pointer);
  int Read(std::byte* to, std::size_t bytes);

  const int fd_;
  bool may_read_ = false;
  bool drained_ = false;
  bool at_end_ = false;
  bool stopped_ = false;
  int error_ = 0;

  std::unique_ptr<std::byte[]> in_;
  std::size_t capacity_ = 0;  // of in_
  std::size_t wanted_;        // the same, from the next read on
  std::size_t in_begin_ = 0;
  std::size_t in_end_ = 0;
  std::vector<std::byte> out_;
  std::size_t out_begin_ = 0;
  std::byte first_[8] = {};
  std::size_t first_bytes_ = 0;
};

}  // namespace ferry::net::tcp
