#include "bellows/checkpoint/manifest.h"

#include <array>

#include <nlohmann/json.hpp>

#include "bellows/checkpoint/json_text.h"
#include "bellows/core/error.h"
#include "bellows/core/file.h"
#include "bellows/core/text.h"

namespace bellows::checkpoint {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// A part's state is a tree, a few levels down.
constexpr int kDeepest = kDeepestTree + 10;

void check_version(const fs::path& path, const json& root) {
  const auto version = root.find("version");
  if (version == root.end() || !version->is_number_integer() || version->get<int64_t>() < 1) {
    throw CorruptFileError(path, "it has no \"version\" number; not a checkpoint, or damaged");
  }
  if (version->get<int64_t>() > kVersion) {
    throw ValueError(concat(path.string(), ": its format has version ", version->dump(),
                            ", this Bellows reads up to version ", kVersion,
                            "; use the Bellows that wrote it, or a newer one"));
  }
}

void check_text(const fs::path& path, const std::string& text) {
  const size_t length = manifest_end("").size();
  const size_t body = text.size() < length ? 0 : text.size() - length;
  if (text.substr(body) != manifest_end(std::string_view(text).substr(0, body))) {
    throw CorruptFileError(path, "its checksum does not fit its text; the file was damaged");
  }
}

// Version 1 had the state of each part where version 2 has {"files", "state"}; a part's tensors
// were all in "<part>.safetensors", if anywhere.
json from_version_1(json root) {
  const json files = root.at("files");
  json parts = json::object();
  const auto add = [&](const std::string& name, const json& state) {
    const std::string file = name + ".safetensors";
    parts[name] = {{"state", state},
                   {"files", files.contains(file) ? json::array({file}) : json::array()}};
  };
  add("model", nullptr);
  for (const auto& [name, state] : root.at("parts").items()) add(name, state);
  root["parts"] = std::move(parts);
  return root;
}

/// The n-th brings version n + 1 to n + 2.
constexpr std::array kMigrations = {&from_version_1};
static_assert(kMigrations.size() + 1 == kVersion);

Digest digest_from(const json& file) {
  const bool header = file.contains("header_xxh3");
  const auto text = file.at(header ? "header_xxh3" : "xxh3").get<std::string>();
  return {.bytes = file.at("bytes").get<uint64_t>(),
          .hash = parse_hash(text).value_or(0),
          .of = header ? Digest::Of::header : Digest::Of::file};
}

SlicedTensor sliced_from(const json& tensor) {
  SlicedTensor sliced{.shape = tensor.at("shape").get<std::vector<int64_t>>(), .slices = {}};
  for (const json& slice : tensor.at("slices")) {
    sliced.slices.push_back({.file = slice.at("file").get<std::string>(),
                             .offset = slice.at("offset").get<std::vector<int64_t>>()});
  }
  return sliced;
}

Part part_from(const json& part) {
  Part result{.state = part.at("state").dump(),
              .files = part.at("files").get<std::vector<std::string>>(),
              .sliced = {}};
  if (const auto sliced = part.find("sliced"); sliced != part.end()) {
    for (const auto& [name, tensor] : sliced->items()) result.sliced[name] = sliced_from(tensor);
  }
  return result;
}

Manifest manifest_from(const json& root) {
  Manifest manifest{.step = root.at("step").get<int64_t>(), .files = {}, .parts = {}};
  for (const auto& [name, file] : root.at("files").items()) {
    manifest.files[name] = digest_from(file);
  }
  for (const auto& [name, part] : root.at("parts").items()) manifest.parts[name] = part_from(part);
  return manifest;
}

// Files lie in the checkpoint's own directory, and whatever a part mentions is listed.
void check_names(const fs::path& path, const Manifest& manifest) {
  for (const auto& [name, digest] : manifest.files) {
    if (fs::path(name).filename() != name || name == "." || name == "..") {
      throw CorruptFileError(path, "got the file '" + name + "', expected a plain name");
    }
  }
  const auto check = [&](const std::string& part, const std::string& file) {
    if (manifest.files.contains(file)) return;
    throw CorruptFileError(path, "part '" + part + "': the file '" + file + "' is not listed");
  };
  for (const auto& [name, part] : manifest.parts) {
    for (const std::string& file : part.files) check(name, file);
    for (const auto& [tensor, sliced] : part.sliced) {
      for (const Slice& slice : sliced.slices) check(name, slice.file);
    }
  }
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

std::string manifest_end(std::string_view body) {
  return ",\"xxh3\":\"" + hash_text(hash_of(body)) + "\"}\n";
}

std::string format_manifest(const Manifest& manifest) {
  json files = json::object();
  for (const auto& [name, digest] : manifest.files) {
    const char* key = digest.of == Digest::Of::header ? "header_xxh3" : "xxh3";
    files[name] = {{"bytes", digest.bytes}, {key, hash_text(digest.hash)}};
  }
  std::string body = concat("{\"version\":", kVersion, ",\"step\":", manifest.step,
                            ",\"files\":", files.dump(), ",\"parts\":{");
  for (const auto& [name, part] : manifest.parts) {
    body += (body.back() == '{' ? "" : ",") + json(name).dump() +
            ":{\"files\":" + json(part.files).dump();
    if (!part.sliced.empty()) {
      json sliced = json::object();
      for (const auto& [tensor, whole] : part.sliced) {
        json slices = json::array();
        for (const Slice& slice : whole.slices) {
          slices.push_back({{"file", slice.file}, {"offset", slice.offset}});
        }
        sliced[tensor] = {{"shape", whole.shape}, {"slices", slices}};
      }
      body += ",\"sliced\":" + sliced.dump();
    }
    body += ",\"state\":" + part.state + "}";
  }
  body += "}";
  return body + manifest_end(body);
}

Manifest read_manifest(const fs::path& directory) {
  const fs::path path = directory / kManifestName;
  Manifest manifest = parse_manifest(path, read_file(path));
  check_files(directory, manifest);
  return manifest;
}

Manifest parse_manifest(const fs::path& path, const std::string& text) {
  json root = parse_json(text, kDeepest);
  if (!root.is_object()) throw CorruptFileError(path, "it is not a JSON object; damaged");
  check_version(path, root);
  check_text(path, text);
  try {
    for (auto version = root.at("version").get<int64_t>(); version < kVersion; ++version) {
      root = kMigrations[static_cast<size_t>(version - 1)](std::move(root));
    }
    Manifest manifest = manifest_from(root);
    check_names(path, manifest);
    return manifest;
  } catch (const json::exception& error) {
    throw CorruptFileError(path, concat("an entry is missing or of another kind: ", error.what()));
  }
}

}  // namespace bellows::checkpoint
