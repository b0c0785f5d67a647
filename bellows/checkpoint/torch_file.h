// Python's torch.save files: read by a reader that builds tensors and containers and runs no code,
// and written such that torch.load(weights_only=True) reads them.
#pragma once

#include <filesystem>

#include "bellows/checkpoint/py_value.h"

namespace bellows::checkpoint {

/// What torch.save wrote: zip files and those from before PyTorch 1.6, pickle protocols 1 to 5
/// (there 2). Tensors are on the CPU, in memory of their own; those that shared memory share it
/// again, and views, strides and requires_grad are as saved. Memory is at most twice the file and
/// 16 MiB; nothing is taken before the file's size justifies it. Attributes of containers and
/// tensors (a state dict's _metadata) are dropped; types, devices and layouts become text.
///
/// What is read is compared with the archive's checksums, where it has any.
///
/// `select`: only that part, by dotted keys ("model", "ema.shadow"); the rest may then be of any
/// class. Throws CorruptFileError, FileError; ValueError for another kind of file, a newer version,
/// a class other than tensors and containers (all are named), a key that is not there.
PyValue read_torch_file(const std::filesystem::path& path, std::string_view select = {});

/// Writes the value atomically: temporary name, fsync, rename. Tensors that share memory are
/// written once, with their strides; those on devices are copied to the host. The bytes depend on
/// the value alone. Throws ValueError before the file is touched (a sparse or undefined tensor, a
/// type PyTorch's files lack, containers nested deeper than 200), FileError.
void write_torch_file(const std::filesystem::path& path, const PyValue& value);

}  // namespace bellows::checkpoint
