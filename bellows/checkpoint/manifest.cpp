#include "bellows/checkpoint/manifest.h"

#include <charconv>

#include <nlohmann/json.hpp>

#include "bellows/checkpoint/checkpoint.h"
#include "bellows/core/error.h"
#include "bellows/core/file.h"
#include "bellows/core/text.h"

namespace bellows::checkpoint {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

std::string tail(std::string_view body) {
  return ",\"xxh3\":\"" + hash_text(hash_of(body)) + "\"}\n";
}

void check_version(const fs::path& path, const json& root) {
  const auto version = root.find("version");
  if (version == root.end() || !version->is_number_integer()) {
    throw CorruptFileError(path, "it has no \"version\" number; not a checkpoint, or damaged");
  }
  if (version->get<int64_t>() > kVersion) {
    throw ValueError(concat(path.string(), ": its format has version ", version->dump(),
                            ", this Bellows reads up to version ", kVersion,
                            "; use the Bellows that wrote it, or a newer one"));
  }
}

void check_text(const fs::path& path, const std::string& text) {
  const size_t length = tail("").size();
  const size_t body = text.size() < length ? 0 : text.size() - length;
  if (text.substr(body) != tail(std::string_view(text).substr(0, body))) {
    throw CorruptFileError(path, "its checksum does not fit its text; the file was damaged");
  }
}

uint64_t hash_from(const std::string& text) {
  uint64_t hash = 0;
  std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  return hash;
}

Manifest manifest_from(const json& root) {
  Manifest manifest{.step = root.at("step").get<int64_t>(), .files = {}, .parts = {}};
  for (const auto& [name, file] : root.at("files").items()) {
    manifest.files[name] = {.bytes = file.at("bytes").get<uint64_t>(),
                            .hash = hash_from(file.at("xxh3").get<std::string>())};
  }
  for (const auto& [name, part] : root.at("parts").items()) manifest.parts[name] = part.dump();
  return manifest;
}

void check_files(const fs::path& directory, const Manifest& manifest) {
  for (const auto& [name, digest] : manifest.files) {
    const fs::path path = directory / name;
    std::error_code error;
    const uintmax_t size = fs::file_size(path, error);
    if (error) throw FileError(path, "stat", error.value());
    if (size != digest.bytes) {
      throw CorruptFileError(path, concat("got ", size, " bytes, expected ", digest.bytes,
                                          "; the file was cut or replaced"));
    }
  }
}

}  // namespace

std::string format_manifest(const Manifest& manifest) {
  json files = json::object();
  for (const auto& [name, digest] : manifest.files) {
    files[name] = {{"bytes", digest.bytes}, {"xxh3", hash_text(digest.hash)}};
  }
  std::string body =
      concat("{\"version\":", kVersion, ",\"step\":", manifest.step, ",\"files\":", files.dump());
  body += ",\"parts\":{";
  for (const auto& [name, part] : manifest.parts) {
    body += (body.back() == '{' ? "" : ",") + json(name).dump() + ":" + part;
  }
  body += "}";
  return body + tail(body);
}

Manifest read_manifest(const fs::path& directory) {
  const fs::path path = directory / kManifestName;
  const std::string text = read_file(path);
  const json root = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) throw CorruptFileError(path, "it is not a JSON object; damaged");
  check_version(path, root);
  check_text(path, text);
  try {
    Manifest manifest = manifest_from(root);
    check_files(directory, manifest);
    return manifest;
  } catch (const json::exception& error) {
    throw CorruptFileError(path, concat("an entry is missing or of another kind: ", error.what()));
  }
}

}  // namespace bellows::checkpoint
