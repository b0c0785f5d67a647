#include "bellows/optim/option_visitor.h"

#include <algorithm>
#include <cmath>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::optim {
namespace {

std::vector<std::string> words_of(std::span<const Implementation> choices) {
  std::vector<std::string> words{to_string(Implementation::automatic)};
  for (const Implementation choice : choices) words.emplace_back(to_string(choice));
  return words;
}

std::string element(const char* key, size_t index) {
  return concat(key, "[", index, "]");
}

class Check : public OptionVisitor {
 public:
  explicit Check(const char* optimizer) : optimizer_(optimizer) {}

  void number(const char* key, double& value, Range range) override { in(key, value, range); }
  void integer(const char* key, int64_t& value, Range range) override {
    in(key, static_cast<double>(value), range);
  }
  void flag(const char* /*key*/, bool& /*value*/) override {}
  void numbers(const char* key, std::span<double> values, Range range) override {
    for (size_t i = 0; i < values.size(); ++i) in(element(key, i), values[i], range);
  }
  void word(const char* key, std::optional<std::string>& value,
            const std::vector<std::string>& words) override {
    if (!value || std::ranges::find(words, *value) != words.end()) return;
    refuse(key, "got '" + *value + "', expected one of " + join(words));
  }
  void optional_integer(const char* key, std::optional<int64_t>& value, Range range) override {
    if (value) in(key, static_cast<double>(*value), range);
  }
  void half_optional(const char* key, std::optional<double>& first, double& second,
                     Range range) override {
    if (first) in(element(key, 0), *first, range);
    in(element(key, 1), second, range);
  }
  void implementation(Implementation& value, std::span<const Implementation> choices) override {
    if (value == Implementation::automatic || std::ranges::find(choices, value) != choices.end()) {
      return;
    }
    refuse("implementation",
           concat("got ", to_string(value), ", expected one of ", join(words_of(choices))));
  }
  void rule(const char* key, bool holds, const char* what) override {
    if (!holds) refuse(key, what);
  }

 private:
  [[noreturn]] void refuse(const std::string& key, const std::string& what) const {
    throw ValueError(concat(optimizer_, ": ", key, ": ", what));
  }
  void in(const std::string& key, double value, Range range) const {
    if (!range.contains(value)) refuse(key, concat("got ", value, ", expected ", range.text()));
  }

  const char* optimizer_;
};

class Write : public OptionVisitor {
 public:
  Tree::Dict tree;

  void number(const char* key, double& value, Range /*range*/) override { tree[key] = value; }
  void integer(const char* key, int64_t& value, Range /*range*/) override { tree[key] = value; }
  void flag(const char* key, bool& value) override { tree[key] = value; }
  void numbers(const char* key, std::span<double> values, Range /*range*/) override {
    tree[key] = Tree::List(values.begin(), values.end());
  }
  void word(const char* key, std::optional<std::string>& value,
            const std::vector<std::string>& /*words*/) override {
    tree[key] = value ? Tree(*value) : Tree();
  }
  void optional_integer(const char* key, std::optional<int64_t>& value, Range /*range*/) override {
    tree[key] = value ? Tree(*value) : Tree();
  }
  void half_optional(const char* key, std::optional<double>& first, double& second,
                     Range /*range*/) override {
    tree[key] = Tree::List{first ? Tree(*first) : Tree(), second};
  }
  void implementation(Implementation& /*value*/,
                      std::span<const Implementation> /*choices*/) override {}
  void rule(const char* /*key*/, bool /*holds*/, const char* /*what*/) override {}
};

class Read : public OptionVisitor {
 public:
  explicit Read(const Tree& saved) : saved_(saved) {}

  void number(const char* key, double& value, Range /*range*/) override {
    value = saved_.at(key).number();
  }
  void integer(const char* key, int64_t& value, Range /*range*/) override {
    value = saved_.at(key).integer();
  }
  void flag(const char* key, bool& value) override { value = saved_.at(key).boolean(); }
  void numbers(const char* key, std::span<double> values, Range /*range*/) override {
    for (size_t i = 0; i < values.size(); ++i) values[i] = saved_.at(key)[i].number();
  }
  void word(const char* key, std::optional<std::string>& value,
            const std::vector<std::string>& /*words*/) override {
    value.reset();
    if (!saved_.at(key).empty()) value = saved_.at(key).string();
  }
  void optional_integer(const char* key, std::optional<int64_t>& value, Range /*range*/) override {
    value.reset();
    if (!saved_.at(key).empty()) value = saved_.at(key).integer();
  }
  void half_optional(const char* key, std::optional<double>& first, double& second,
                     Range /*range*/) override {
    first.reset();
    if (!saved_.at(key)[0].empty()) first = saved_.at(key)[0].number();
    second = saved_.at(key)[1].number();
  }
  void implementation(Implementation& /*value*/,
                      std::span<const Implementation> /*choices*/) override {}
  void rule(const char* /*key*/, bool /*holds*/, const char* /*what*/) override {}

 private:
  const Tree& saved_;
};

class Configure : public OptionVisitor {
 public:
  explicit Configure(Options& table) : table_(table) {}

  void number(const char* key, double& value, Range range) override {
    value = table_.get<double>(key, value);
    if (!range.contains(value)) refuse(key, concat("got ", value), range.text());
  }
  void integer(const char* key, int64_t& value, Range range) override {
    value = table_.get<int64_t>(key, value);
    if (!range.contains(static_cast<double>(value))) {
      refuse(key, concat("got ", value), range.text());
    }
  }
  void flag(const char* key, bool& value) override { value = table_.get<bool>(key, value); }
  void numbers(const char* key, std::span<double> values, Range range) override {
    const auto read = table_.get(key, std::vector<double>(values.begin(), values.end()));
    if (read.size() != values.size() ||
        !std::ranges::all_of(read, [&](double value) { return range.contains(value); })) {
      refuse(key, "got " + to_toml(read), list_text(values.size(), range));
    }
    std::ranges::copy(read, values.begin());
  }
  void word(const char* key, std::optional<std::string>& value,
            const std::vector<std::string>& words) override {
    std::vector<std::string> all = words;
    all.emplace_back("");  // none
    const std::string read = table_.get_one_of(key, value.value_or(""), all);
    value.reset();
    if (!read.empty()) value = read;
  }
  void optional_integer(const char* key, std::optional<int64_t>& value, Range range) override {
    if (const auto read = table_.find<int64_t>(key)) value = read;
    if (value && !range.contains(static_cast<double>(*value))) {
      refuse(key, concat("got ", *value), range.text());
    }
  }
  void half_optional(const char* key, std::optional<double>& first, double& second,
                     Range range) override {
    const auto read = table_.find<std::vector<double>>(key);
    if (!read) return;
    if (read->size() != 2 || !range.contains((*read)[0]) || !range.contains((*read)[1])) {
      refuse(key, "got " + to_toml(*read), list_text(2, range));
    }
    first = (*read)[0];
    second = (*read)[1];
  }
  void implementation(Implementation& value, std::span<const Implementation> choices) override {
    const std::string read =
        table_.get_one_of("implementation", to_string(value), words_of(choices));
    for (const Implementation choice : choices) {
      if (read == to_string(choice)) value = choice;
    }
    if (read == to_string(Implementation::automatic)) value = Implementation::automatic;
  }
  void rule(const char* key, bool holds, const char* what) override {
    if (!holds) table_.fail(key, what);
  }

 private:
  static std::string list_text(size_t count, Range range) {
    const char* const words[] = {"no", "one", "two", "three"};
    std::string each = range.text();
    for (const char* const article : {"a number ", "a finite number "}) {
      if (each.starts_with(article)) each = each.substr(std::string_view(article).size());
    }
    return concat(words[std::min<size_t>(count, 3)], " numbers ", each);
  }
  [[noreturn]] void refuse(const char* key, const std::string& got, const std::string& what) const {
    table_.fail(key, got + ", expected " + what);
  }

  Options& table_;
};

}  // namespace

const char* to_string(Implementation implementation) {
  switch (implementation) {
    case Implementation::fused:
      return "fused";
    case Implementation::foreach:
      return "foreach";
    case Implementation::single:
      return "single";
    case Implementation::automatic:
      break;
  }
  return "auto";
}

bool Range::contains(double value) const {
  return std::isfinite(value) && (above_low ? value > low : value >= low) &&
         (below_high ? value < high : value <= high);
}

std::string Range::text() const {
  if (std::isinf(low) && std::isinf(high)) return "a finite number";
  if (std::isinf(high)) {
    return concat("a finite number ", above_low ? "above " : "of at least ", low);
  }
  if (std::isinf(low))
    return concat("a finite number ", below_high ? "below " : "of at most ", high);
  return concat("a number ", above_low ? "above " : "from ", low, above_low ? " and " : " to ",
                below_high  ? "below "
                : above_low ? "at most "
                            : "",
                high);
}

namespace detail {

void check(const char* optimizer, Visit visit, void* options) {
  Check visitor(optimizer);
  visit(visitor, options);
}

Tree::Dict to_tree(Visit visit, void* options) {
  Write visitor;
  visit(visitor, options);
  return std::move(visitor.tree);
}

void from_tree(const Tree& saved, Visit visit, void* options) {
  Read visitor(saved);
  visit(visitor, options);
}

void read(Options& table, Visit visit, void* options) {
  Configure visitor(table);
  visit(visitor, options);
}

}  // namespace detail
}  // namespace bellows::optim
