// Computes the checksums of frames and stores them in their headers.
#include "ferry/transfer/lane/frame_checksum.h"

#include <cstring>

#include "ferry/core/crc32c.h"
#include "ferry/core/unordered_access.h"

namespace ferry::transfer {

std::uint32_t Crc32cOf(std::span<const iovec> pieces) {
  const UnorderedAccess reading;
  std::uint32_t crc = 0;
  for (const iovec& piece : pieces) {
    crc = Crc32c(std::span(static_cast<const std::byte*>(piece.iov_base), piece.iov_len), crc);
  }
  return crc;
}

std::uint32_t MetadataCrc(std::span<const std::byte> meta, const wire::MessageHeader& header) {
  wire::MessageHeader summed = header;
  summed.meta_crc = 0;
  return Crc32c(meta.subspan(sizeof header), Crc32c(wire::BytesOf(summed)));
}

void SealPayload(std::uint32_t crc, std::vector<std::byte>* meta) {
  std::memcpy(meta->data() + offsetof(wire::MessageHeader, crc), &crc, sizeof crc);
}

void SealMetadata(std::vector<std::byte>* meta) {
  const auto flags = static_cast<std::byte>(wire::kChecked);
  std::memcpy(meta->data() + offsetof(wire::MessageHeader, flags), &flags, 1);
  std::byte* const at = meta->data() + offsetof(wire::MessageHeader, meta_crc);
  std::memset(at, 0, sizeof(std::uint32_t));
  const std::uint32_t crc = Crc32c(*meta);
  std::memcpy(at, &crc, sizeof crc);
}

}  // namespace ferry::transfer
