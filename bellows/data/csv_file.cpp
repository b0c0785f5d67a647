#include "bellows/data/csv_file.h"

#include <charconv>
#include <unordered_set>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::data {
namespace {

class Parser {
 public:
  Parser(std::string_view text, const std::filesystem::path& path, char separator,
         std::optional<double> missing)
      : text_(text), path_(path), separator_(separator), missing_(missing) {}

  CsvNumbers parse(bool header) {
    if (text_.starts_with("\xef\xbb\xbf")) at_ = 3;  // a byte-order mark
    if (header && at_ < text_.size()) {
      numbers_.columns = line();
      check_names();
    }
    while (at_ < text_.size()) row();
    if (numbers_.values.empty()) {
      throw CorruptFileError(path_, concat("got ", line_ - 1, " lines, expected ",
                                           header ? "a header and " : "", "at least one row"));
    }
    return std::move(numbers_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw CorruptFileError(path_, concat("line ", line_of_row_, ": ", what));
  }

  void check_names() const {
    std::unordered_set<std::string_view> names;
    for (const std::string& name : numbers_.columns) {
      if (!names.insert(name).second)
        fail(concat("got the column \"", shown(name), "\" twice, expected each name once"));
    }
  }

  void row() {
    const std::vector<std::string> fields = line();
    auto& columns = numbers_.columns;
    if (columns.empty()) {
      for (size_t c = 0; c < fields.size(); ++c) columns.push_back(std::to_string(c));
    }
    if (fields.size() == 1 && fields[0].empty() && columns.size() != 1 &&
        text_.find_first_not_of("\r\n", at_) == std::string_view::npos) {
      at_ = text_.size();  // empty lines at the end
      return;
    }
    if (fields.size() != columns.size())
      fail(concat("got ", fields.size(), " fields, expected ", columns.size()));
    for (size_t c = 0; c < fields.size(); ++c)
      numbers_.values.push_back(number(fields[c], columns[c]));
  }

  double number(std::string_view field, const std::string& column) const {
    while (!field.empty() && (field.front() == ' ' || field.front() == '\t'))
      field.remove_prefix(1);
    while (!field.empty() && (field.back() == ' ' || field.back() == '\t')) field.remove_suffix(1);
    if (field.empty() && missing_) return *missing_;
    const std::string_view whole = field;
    if (field.starts_with('+') && !field.starts_with("+-")) field.remove_prefix(1);
    double value = 0;
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
    if (error == std::errc::result_out_of_range)
      fail(concat("column ", column, ": got ", shown(whole), ", out of range of a double"));
    if (error != std::errc() || end != field.data() + field.size())
      fail(concat("column ", column, ": got \"", shown(whole), "\", expected a number"));
    return value;
  }

  static std::string shown(std::string_view text) {
    constexpr size_t kMostShown = 40;
    std::string result(text.substr(0, kMostShown));
    for (char& c : result) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
    }
    return result;
  }

  // The fields of one line, which may go over several where they are quoted.
  std::vector<std::string> line() {
    line_of_row_ = line_;
    std::vector<std::string> fields;
    for (;;) {
      fields.push_back(at_ < text_.size() && text_[at_] == '"' ? quoted() : plain());
      if (at_ >= text_.size()) break;
      const char c = text_[at_++];
      if (c == separator_) continue;
      if (c == '\r' && at_ < text_.size() && text_[at_] == '\n') ++at_;
      break;
    }
    ++line_;
    return fields;
  }

  std::string plain() {
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != separator_ && text_[at_] != '\n' &&
           text_[at_] != '\r') {
      ++at_;
    }
    return std::string(text_.substr(begin, at_ - begin));
  }

  std::string quoted() {
    std::string field;
    for (++at_; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '\n') ++line_;
      if (c != '"') {
        field += c;
      } else if (at_ + 1 < text_.size() && text_[at_ + 1] == '"') {
        field += text_[++at_];
      } else {
        ++at_;
        const bool ends = at_ >= text_.size() || text_[at_] == separator_ || text_[at_] == '\n' ||
                          text_[at_] == '\r';
        if (!ends) fail("got text after a closing quote, expected a separator or the line's end");
        return field;
      }
    }
    fail("got the end of the file inside of quotes, expected a closing one");
  }

  std::string_view text_;
  const std::filesystem::path& path_;
  char separator_;
  std::optional<double> missing_;
  size_t at_ = 0;
  size_t line_ = 1;
  size_t line_of_row_ = 1;
  CsvNumbers numbers_;
};

}  // namespace

CsvNumbers parse_csv(std::string_view text, const std::filesystem::path& path, char separator,
                     bool header, std::optional<double> missing) {
  return Parser(text, path, separator, missing).parse(header);
}

}  // namespace bellows::data
