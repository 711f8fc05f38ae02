// CRC32C of the engine's frames.
#pragma once
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ferry/transfer/handshake/wire.h"

namespace ferry::transfer {

// The checksum of the bytes of all pieces, one after the other. The bytes may change meanwhile.
std::uint32_t Crc32cOf(std::span<const iovec> pieces);
// The checksum of a frame's metadata, which begins with `header`: counts meta_crc as zero.
std::uint32_t MetadataCrc(std::span<const std::byte> meta, const wire::MessageHeader& header);
// Stores the payload's checksum in the metadata, which SealMetadata must follow.
void SealPayload(std::uint32_t crc, std::vector<std::byte>* meta);
// Marks the metadata as checked, and stores its checksum in it. The metadata must be final.
void SealMetadata(std::vector<std::byte>* meta);

}  // namespace ferry::transfer
