#include <bit>
#include <charconv>
#include <unordered_map>

#include "bellows/core/text.h"
#include "bellows/formats/pickle.h"
#include "bellows/formats/pickle_opcodes.h"

namespace bellows::formats::pickle {
namespace {

constexpr uint8_t kNewestProtocol = 5;

Value of_boolean(bool boolean) {
  Value value;
  value.tag = Tag::boolean;
  value.boolean = boolean;
  return value;
}

Value of_integer(int64_t integer) {
  Value value;
  value.tag = Tag::integer;
  value.integer = integer;
  return value;
}

Value of_real(double real) {
  Value value;
  value.tag = Tag::real;
  value.real = real;
  return value;
}

class Machine {
 public:
  Machine(Cursor& in, Heap& heap) : in_(in), heap_(heap) {}

  Value run() {
    for (;;) {
      const uint8_t op = in_.byte();
      if (op == STOP) return pop();
      if (!(constant(op) || text(op) || memo(op) || container(op) || made(op))) {
        in_.fail(concat("unknown opcode ", static_cast<int>(op)));
      }
    }
  }

 private:
  // The stack.
  void push(Value value) {
    if (stack_.size() == stack_.capacity()) {  // it doubles
      heap_.charge(std::max<size_t>(stack_.capacity(), 16) * sizeof(Value));
    }
    stack_.push_back(value);
  }
  void need(size_t count) const {
    const size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() - floor < count) in_.fail("it takes more from its stack than is there");
  }
  Value pop() {
    need(1);
    const Value value = stack_.back();
    stack_.pop_back();
    return value;
  }
  Value& top() {
    need(1);
    return stack_.back();
  }
  std::vector<Value> pop_to_mark() {
    if (marks_.empty()) in_.fail("it takes from its stack up to a mark, and there is none");
    const auto from = stack_.begin() + static_cast<ptrdiff_t>(marks_.back());
    std::vector<Value> items(from, stack_.end());
    stack_.erase(from, stack_.end());
    marks_.pop_back();
    return items;
  }
  std::vector<Value> pop_items(size_t count) {
    need(count);
    const auto from = stack_.end() - static_cast<ptrdiff_t>(count);
    std::vector<Value> items(from, stack_.end());
    stack_.erase(from, stack_.end());
    return items;
  }

  // Numbers.
  bool constant(uint8_t op) {
    switch (op) {
      case NONE:
        push({});
        return true;
      case NEWTRUE:
        push(of_boolean(true));
        return true;
      case NEWFALSE:
        push(of_boolean(false));
        return true;
      case BININT:
        push(of_integer(in_.number<int32_t>()));
        return true;
      case BININT1:
        push(of_integer(in_.byte()));
        return true;
      case BININT2:
        push(of_integer(in_.number<uint16_t>()));
        return true;
      case INT:
      case LONG:
        push(int_line(in_.line()));
        return true;
      case LONG1:
        push(long_of(in_.take(in_.byte())));
        return true;
      case LONG4:
        push(long_of(in_.take(length(in_.number<int32_t>()))));
        return true;
      case FLOAT:
        push(float_line(in_.line()));
        return true;
      case BINFLOAT: {
        uint64_t bits = 0;
        for (int i = 0; i < 8; ++i) bits = bits << 8 | in_.byte();
        push(of_real(std::bit_cast<double>(bits)));
        return true;
      }
      case PROTO:
        if (const uint8_t protocol = in_.byte(); protocol > kNewestProtocol) {
          in_.fail(concat("its protocol is ", static_cast<int>(protocol), ", this reads up to ",
                          static_cast<int>(kNewestProtocol)));
        }
        return true;
      case FRAME:
        if (in_.number<uint64_t>() > in_.remaining()) in_.fail("a frame is longer than the file");
        return true;
      default:
        return false;
    }
  }

  Value int_line(std::string line) const {
    if (line == "00" || line == "01") return of_boolean(line == "01");
    if (line.ends_with('L')) line.pop_back();
    int64_t value = 0;
    const char* const end = line.data() + line.size();
    if (const auto read = std::from_chars(line.data(), end, value);
        read.ec != std::errc() || read.ptr != end) {
      in_.fail("'" + line.substr(0, 40) + "' is no integer of 64 bits");
    }
    return of_integer(value);
  }
  Value float_line(const std::string& line) const {
    double value = 0;
    const char* const end = line.data() + line.size();
    if (const auto read = std::from_chars(line.data(), end, value);
        read.ec != std::errc() || read.ptr != end) {
      in_.fail("'" + line.substr(0, 40) + "' is no number");
    }
    return of_real(value);
  }
  Value long_of(std::string bytes) {
    if (bytes.size() > 8) return heap_.add_text(Tag::big_integer, std::move(bytes));
    uint64_t value = 0;
    for (size_t i = 0; i < bytes.size(); ++i) {
      value |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
    }
    if (!bytes.empty() && bytes.size() < 8 && (bytes.back() & 0x80) != 0) {
      value |= ~uint64_t{0} << (8 * bytes.size());
    }
    return of_integer(static_cast<int64_t>(value));
  }
  uint64_t length(int32_t got) const {
    if (got < 0) in_.fail(concat("a length is ", got));
    return static_cast<uint64_t>(got);
  }

  // Text and bytes.
  bool text(uint8_t op) {
    switch (op) {
      case SHORT_BINSTRING:
        return add(Tag::text, in_.take(in_.byte()));
      case BINSTRING:
        return add(Tag::text, in_.take(length(in_.number<int32_t>())));
      case SHORT_BINUNICODE:
        return add(Tag::text, in_.take(in_.byte()));
      case BINUNICODE:
        return add(Tag::text, in_.take(in_.number<uint32_t>()));
      case BINUNICODE8:
        return add(Tag::text, in_.take(in_.number<uint64_t>()));
      case SHORT_BINBYTES:
        return add(Tag::bytes, in_.take(in_.byte()));
      case BINBYTES:
        return add(Tag::bytes, in_.take(in_.number<uint32_t>()));
      case BINBYTES8:
      case BYTEARRAY8:
        return add(Tag::bytes, in_.take(in_.number<uint64_t>()));
      case STRING:
      case UNICODE:
        return add(Tag::text, unescaped(in_.line(), op == STRING));
      default:
        return false;
    }
  }
  bool add(Tag tag, std::string text) {
    push(heap_.add_text(tag, std::move(text)));
    return true;
  }
  // Protocol 0 writes text as Python source does; names and keys need no escapes.
  std::string unescaped(std::string line, bool quoted) const {
    if (quoted) {
      const bool whole = line.size() >= 2 && line.front() == line.back() &&
                         (line.front() == '\'' || line.front() == '"');
      if (!whole) in_.fail("a text has no quotes around it");
      line = line.substr(1, line.size() - 2);
    }
    if (line.find('\\') != std::string::npos) {
      in_.fail("a text has escapes; save the file again with protocol 2 or later");
    }
    return line;
  }

  // The memo.
  bool memo(uint8_t op) {
    switch (op) {
      case BINPUT:
        return put(in_.byte());
      case LONG_BINPUT:
        return put(in_.number<uint32_t>());
      case PUT:
        return put(static_cast<uint64_t>(int_line(in_.line()).integer));
      case MEMOIZE:
        return put(memo_.size());
      case BINGET:
        return get(in_.byte());
      case LONG_BINGET:
        return get(in_.number<uint32_t>());
      case GET:
        return get(static_cast<uint64_t>(int_line(in_.line()).integer));
      default:
        return false;
    }
  }
  bool put(uint64_t index) {
    const Value value = top();
    if (!memo_.contains(index)) heap_.charge(kMemoBytes);
    memo_[index] = value;
    return true;
  }
  bool get(uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end())
      in_.fail(concat("it takes ", index, " from its memo, which is empty"));
    push(found->second);
    return true;
  }

  // Containers.
  bool container(uint8_t op) {
    switch (op) {
      case MARK:
        if (marks_.size() == marks_.capacity()) {
          heap_.charge(std::max<size_t>(marks_.capacity(), 16) * sizeof(size_t));
        }
        marks_.push_back(stack_.size());
        return true;
      case POP:
        if (!marks_.empty() && marks_.back() == stack_.size()) {
          marks_.pop_back();
        } else {
          static_cast<void>(pop());
        }
        return true;
      case POP_MARK:
        static_cast<void>(pop_to_mark());
        return true;
      case DUP:
        push(Value(top()));
        return true;
      case EMPTY_LIST:
        push(heap_.add_items(Tag::list, {}));
        return true;
      case EMPTY_TUPLE:
        push(heap_.add_items(Tag::tuple, {}));
        return true;
      case EMPTY_DICT:
        push(heap_.add_items(Tag::dict, {}));
        return true;
      case EMPTY_SET:
        push(heap_.add_items(Tag::set, {}));
        return true;
      case LIST:
        push(heap_.add_items(Tag::list, pop_to_mark()));
        return true;
      case TUPLE:
        push(heap_.add_items(Tag::tuple, pop_to_mark()));
        return true;
      case FROZENSET:
        push(heap_.add_items(Tag::set, pop_to_mark()));
        return true;
      case TUPLE1:
      case TUPLE2:
      case TUPLE3:
        push(heap_.add_items(Tag::tuple, pop_items(static_cast<size_t>(op - TUPLE1 + 1))));
        return true;
      case DICT: {
        std::vector<Value> items = pop_to_mark();
        push(heap_.add_items(Tag::dict, {}));
        extend(items, Tag::dict);
        return true;
      }
      case APPEND:
        extend(pop_items(1), Tag::list);
        return true;
      case APPENDS:
        extend(pop_to_mark(), Tag::list);
        return true;
      case ADDITEMS:
        extend(pop_to_mark(), Tag::set);
        return true;
      case SETITEM:
        extend(pop_items(2), Tag::dict);
        return true;
      case SETITEMS:
        extend(pop_to_mark(), Tag::dict);
        return true;
      default:
        return false;
    }
  }
  void extend(const std::vector<Value>& items, Tag tag) {
    const Value target = top();
    if (tag == Tag::dict && items.size() % 2 != 0) in_.fail("a dictionary's key has no value");
    if (target.tag == Tag::object) return;  // a container of an unknown class
    if (target.tag != tag) in_.fail("it adds items to what is no container of that kind");
    std::vector<Value>& into = heap_.items(target);
    const size_t all = into.size() + items.size();
    if (all > into.capacity()) {
      const size_t capacity = std::max(all, 2 * into.capacity());
      heap_.charge((capacity - into.capacity()) * sizeof(Value));
      into.reserve(capacity);
    }
    into.insert(into.end(), items.begin(), items.end());
  }

  // Classes and functions, of which a handful are known.
  bool made(uint8_t op) {
    switch (op) {
      case GLOBAL: {
        std::string module = in_.line();
        push(resolve(heap_, std::move(module), in_.line()));
        return true;
      }
      case STACK_GLOBAL: {
        const std::vector<Value> names = pop_items(2);
        if (names[0].tag != Tag::text || names[1].tag != Tag::text) {
          in_.fail("the name of a class is no text");
        }
        push(resolve(heap_, heap_.text(names[0]), heap_.text(names[1])));
        return true;
      }
      case REDUCE:
      case NEWOBJ: {
        const std::vector<Value> pair = pop_items(2);
        return apply(pair[0], arguments(pair[1]));
      }
      case NEWOBJ_EX: {
        const std::vector<Value> three = pop_items(3);
        return apply(three[0], arguments(three[1]));
      }
      case INST: {
        std::string module = in_.line();
        const Value callee = resolve(heap_, std::move(module), in_.line());
        return apply(callee, pop_to_mark());
      }
      case OBJ: {
        std::vector<Value> items = pop_to_mark();
        if (items.empty()) in_.fail("an object has no class");
        const Value callee = items.front();
        items.erase(items.begin());
        return apply(callee, items);
      }
      case BUILD: {
        const Value state = pop();
        build(in_, heap_, top(), state);
        return true;
      }
      case BINPERSID:
        push(persistent(in_, heap_, pop()));
        return true;
      case PERSID:
        in_.fail("a storage's name is a line of text, expected a tuple");
      case EXT1:
      case EXT2:
      case EXT4:
        in_.fail("it names a class by number (copyreg's extensions), which none has here");
      default:
        return false;
    }
  }
  // Stays where it is while the call adds to the heap.
  const std::vector<Value>& arguments(Value tuple) const {
    if (tuple.tag != Tag::tuple) in_.fail("the arguments of a call are no tuple");
    return heap_.items(tuple);
  }
  bool apply(Value callee, const std::vector<Value>& with) {
    if (callee.tag == Tag::object) {  // made by an unknown class: still unknown
      push(heap_.add(Object{.name = heap_.object(callee).name, .state = {}}));
      return true;
    }
    if (callee.tag != Tag::name) in_.fail("it calls what is neither class nor function");
    const std::string name = heap_.text(callee);
    push(call(in_, heap_, name, with));
    return true;
  }

  static constexpr uint64_t kMemoBytes = 64;  // of an entry of an unordered_map

  Cursor& in_;
  Heap& heap_;
  std::vector<Value> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, Value> memo_;
};

}  // namespace

Value load(Cursor& in, Heap& heap) {
  return Machine(in, heap).run();
}

}  // namespace bellows::formats::pickle
